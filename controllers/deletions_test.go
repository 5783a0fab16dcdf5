package controllers

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/postrider/postrider/api/v1alpha1"
)

func object(name, uid string) *v1alpha1.WebhookEndpoint {
	return &v1alpha1.WebhookEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(uid)}}
}

func TestObservedAndDeletedObjectsAreRemembered(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		do   func(*deletions)
		want []types.UID
	}{
		{"one that is there", func(d *deletions) { d.observe(object("a", "1")) }, nil},
		{"seen again and again", func(d *deletions) { d.observe(object("a", "1")); d.observe(object("a", "1")) }, nil},
		{"a deletion", func(d *deletions) { d.observe(object("a", "1")); d.deleted(object("a", "1")) }, []types.UID{"1"}},
		{"a successor, before anybody told of a deletion", func(d *deletions) { d.observe(object("a", "1")); d.observe(object("a", "2")) }, []types.UID{"1"}},
		{
			"and after",
			func(d *deletions) {
				d.observe(object("a", "1"))
				d.observe(object("a", "2"))
				d.deleted(object("a", "1"))
			},
			[]types.UID{"1"},
		},
		{
			"two successors",
			func(d *deletions) {
				for _, uid := range []string{"1", "2", "3"} {
					d.observe(object("a", uid))
				}
			},
			[]types.UID{"1", "2"},
		},
		{"another name", func(d *deletions) {
			d.observe(object("b", "1"))
			d.deleted(object("b", "1"))
			d.observe(object("a", "2"))
		}, nil},
		{"one whose row is tombstoned", func(d *deletions) { d.deleted(object("a", "1")); d.done(nameOf(object("a", "1")), "1") }, nil},
		{
			"one of two",
			func(d *deletions) {
				d.deleted(object("a", "1"))
				d.deleted(object("a", "2"))
				d.done(nameOf(object("a", "1")), "1")
			},
			[]types.UID{"2"},
		},
		{
			"a deleted one that is made again later",
			func(d *deletions) {
				d.observe(object("a", "1"))
				d.deleted(object("a", "1"))
				d.done(nameOf(object("a", "1")), "1")
				d.observe(object("a", "2"))
			},
			nil,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeletions(nil)
			test.do(d)
			if got := d.of(types.NamespacedName{Namespace: "n", Name: "a"}); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestTheMemoryOfDeletionsIsBounded(t *testing.T) {
	t.Parallel()
	forgotten := 0
	d := newDeletions(func() { forgotten++ })
	for i := range maxDeletions + 3 {
		d.deleted(object(fmt.Sprint(i), "1"))
	}
	if len(d.pending) != maxDeletions || forgotten != 3 {
		t.Errorf("%d are remembered and %d were given up, want %d and 3", len(d.pending), forgotten, maxDeletions)
	}
	for i := range 2 * maxUIDs {
		d.deleted(object("again", fmt.Sprint(i)))
	}
	if got := d.of(nameOf(object("again", ""))); len(got) != maxUIDs || got[maxUIDs-1] != types.UID(fmt.Sprint(2*maxUIDs-1)) {
		t.Errorf("of one name %v are remembered, want the last %d", got, maxUIDs)
	}
	for i := range maxSeen + 3 {
		d.observe(object(fmt.Sprint("s", i), "1"))
	}
	if len(d.seen) != maxSeen {
		t.Errorf("%d objects are remembered, want %d", len(d.seen), maxSeen)
	}
}

func TestTheCacheObservesAndStrips(t *testing.T) {
	t.Parallel()
	d := newDeletions(nil)
	o := object("a", "1")
	o.Annotations, o.ManagedFields = map[string]string{"a": "b"}, []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	if _, err := observing(d)(o); err != nil {
		t.Fatal(err)
	}
	if o.Annotations != nil || o.ManagedFields != nil || d.seen[nameOf(o)] != "1" {
		t.Errorf("kept %v and %v, observed %v", o.Annotations, o.ManagedFields, d.seen)
	}
}
