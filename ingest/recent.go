package ingest

import "k8s.io/utils/lru"

// recent keeps the values that were used last, up to a number of them. It is safe for concurrent use.
type recent[K comparable, V any] struct{ cache *lru.Cache }

func newRecent[K comparable, V any](most int) recent[K, V] { return recent[K, V]{lru.New(most)} }

func (r recent[K, V]) get(key K) (V, bool) {
	entry, _ := r.cache.Get(key)
	value, ok := entry.(V)
	return value, ok
}

func (r recent[K, V]) put(key K, value V) { r.cache.Add(key, value) }
func (r recent[K, V]) remove(key K)       { r.cache.Remove(key) }
func (r recent[K, V]) len() int           { return r.cache.Len() }
