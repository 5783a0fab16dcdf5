package controllers

import (
	"fmt"
	"net/url"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// settings are what may change while the controllers run. They never change themselves: a change is another one.
type settings struct {
	defaults Defaults
	limits   Limits
	checkURL func(*url.URL) error
}

// Change puts defaults, limits and a destination policy in force while the controllers run, and has every endpoint judged
// by them again; what else the configuration says is of no account. It fails for one that Config.Validate refuses, and then
// changes nothing.
func (c *Controllers) Change(config Config, policy URLPolicy) error {
	if err := config.Validate(); err != nil {
		return fmt.Errorf("configuration of the controllers:\n%w", err)
	}
	c.part.settings.Store(settingsOf(config, policy))
	return nil
}

func settingsOf(c Config, policy URLPolicy) *settings {
	return &settings{defaults: c.Defaults, limits: c.Limits, checkURL: policy.CheckURL}
}

// review has all endpoints reconciled once when the settings have changed. Agreements do not outlive a change, so each
// reconcile asks the store anew; it goes behind what is more urgent.
type review struct {
	settings *atomic.Pointer[settings]
	done     *settings
}

func newReview(s *atomic.Pointer[settings]) *review { return &review{settings: s, done: s.Load()} }

// due returns the names of all endpoints, once for each change.
func (r *review) due(f *facts) []types.NamespacedName {
	now := r.settings.Load()
	if now == r.done {
		return nil
	}
	r.done = now
	return f.names()
}

func (f *feed) enqueueReview() {
	if names := f.review.due(f.facts); len(names) > 0 {
		f.log.Info("the settings have changed; every endpoint is judged by them again", "endpoints", len(names))
		f.enqueue(names, handler.LowPriority)
	}
}

// names are those of all objects that have a row.
func (f *facts) names() []types.NamespacedName {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	names := make([]types.NamespacedName, 0, len(f.ids))
	for name := range f.ids {
		names = append(names, name)
	}
	return names
}
