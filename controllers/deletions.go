package controllers

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxDeletions bounds the names with a remembered deletion. When more wait, because the store is away for long, one
	// is forgotten and left to the sweep.
	maxDeletions = 50_000
	// maxUIDs bounds what is remembered of one name. A row has one uid at a time, so the last few suffice.
	maxUIDs = 16
	// maxSeen bounds the objects whose uid is remembered. One that is pushed out loses its protection for a moment that
	// hardly ever comes.
	maxSeen = 200_000
)

// deletions remembers which objects were seen deleted, until their rows are tombstoned.
//
// The workqueue knows names only: a deletion and a creation that follow each other closely reach the reconciler as one
// call, which finds the new object over the old one's row. Without this memory it could not tell them from a cluster
// that was restored from a backup, and the new object would be sent what was meant for the old one.
//
// An informer's cache can be a moment ahead of its event handlers, and a list after a lost watch reports no deletion at
// all where there is a new object of the name. So observe is called by the cache's transform, with each object before
// the cache holds it: whoever reads a new object from the cache finds its predecessor here.
type deletions struct {
	forgotten func() // called, with the mutex held, when one is given up; nil: nobody cares

	mutex   sync.Mutex
	seen    map[types.NamespacedName]types.UID
	pending map[types.NamespacedName][]types.UID // the oldest first
}

func newDeletions(forgotten func()) *deletions {
	return &deletions{
		forgotten: forgotten,
		seen:      map[types.NamespacedName]types.UID{},
		pending:   map[types.NamespacedName][]types.UID{},
	}
}

// observe takes note of an object that exists, or existed until now: another one of its name is gone.
func (d *deletions) observe(o metav1.Object) {
	name := nameOf(o)
	d.mutex.Lock()
	defer d.mutex.Unlock()
	before, known := d.seen[name]
	if known && before == o.GetUID() {
		return
	}
	if known {
		d.add(name, before)
	} else {
		makeRoom(d.seen, maxSeen)
	}
	d.seen[name] = o.GetUID()
}

// deleted takes note of an object whose deletion was seen.
func (d *deletions) deleted(o metav1.Object) {
	name := nameOf(o)
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.seen[name] == o.GetUID() {
		delete(d.seen, name)
	}
	d.add(name, o.GetUID())
}

func (d *deletions) add(name types.NamespacedName, uid types.UID) {
	uids, known := d.pending[name]
	if slices.Contains(uids, uid) {
		return
	}
	if !known && makeRoom(d.pending, maxDeletions) && d.forgotten != nil {
		d.forgotten()
	}
	if len(uids) == maxUIDs {
		uids = uids[1:]
	}
	d.pending[name] = append(uids, uid)
}

// of lists the uids of a name that were seen deleted, the oldest first.
func (d *deletions) of(name types.NamespacedName) []types.UID {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return slices.Clone(d.pending[name])
}

// done forgets a deletion whose row is tombstoned.
func (d *deletions) done(name types.NamespacedName, uid types.UID) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	left := slices.DeleteFunc(slices.Clone(d.pending[name]), func(u types.UID) bool { return u == uid })
	if len(left) == 0 {
		delete(d.pending, name)
		return
	}
	d.pending[name] = left
}

// makeRoom removes an entry, whichever, from a map that is full.
func makeRoom[V any](m map[types.NamespacedName]V, limit int) bool {
	if len(m) < limit {
		return false
	}
	for name := range m {
		delete(m, name)
		break
	}
	return true
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
