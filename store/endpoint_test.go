package store

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestApplyRefusesWhatWasDecidedOnAnOldRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	newer := f.apply(e, func(p *EndpointSpec) { p.URL += "/v2" })
	for name, c := range map[string]struct {
		edit func(*EndpointChange)
		want error
	}{
		"an older generation":                  {func(c *EndpointChange) { c.Generation = 1 }, ErrStale},
		"an older generation, version unknown": {func(c *EndpointChange) { c.Generation, c.IfVersion = 1, 0 }, ErrStale},
		"an older version":                     {func(c *EndpointChange) { c.IfVersion = e.Version }, ErrConflict},
		"taken for new":                        {func(c *EndpointChange) { c.IfVersion = 0 }, ErrConflict},
		"another object of the name":           {func(c *EndpointChange) { c.UID, c.Generation, c.IfVersion = "uid-2", 1, 0 }, ErrConflict},
		"a row that is not there":              {func(c *EndpointChange) { c.Name = "b" }, ErrConflict},
	} {
		change := newer.change(newer.Generation)
		c.edit(&change)
		if got, err := f.ApplyEndpoint(t.Context(), change); !errors.Is(err, c.want) {
			t.Errorf("%s: got %+v, %v; want %v", name, got, err, c.want)
		}
	}
	got, err := f.Endpoint(t.Context(), "billing", "a")
	if err != nil || got.Version != newer.Version || got.Spec.URL != newer.Spec.URL {
		t.Errorf("got %+v, %v; want the row as it was", got, err)
	}
	// The same generation again, for a rotated key or a changed reason, is applied.
	again := newer.change(newer.Generation)
	again.HoldReason = "InvalidSigningKey"
	if got, err = f.ApplyEndpoint(t.Context(), again); err != nil || got.Version != newer.Version+1 || got.HoldReason != "InvalidSigningKey" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Two make the same row at once: one is told to read and decide again.
func TestTwoWhoMakeARowAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	change := EndpointChange{
		PublicID: uuid.New(), Namespace: "billing", Name: "a", NamespaceUID: "ns-1", UID: "uid-a", Generation: 1, Spec: spec(),
	}
	slow := f.gated("first", "INSERT", "lane") // the row is written
	making := begin(t, func(ctx context.Context) (Endpoint, error) { return slow.ApplyEndpoint(ctx, change) })
	f.blocked("first", making.done)
	second := f.as("second")
	later := change
	later.PublicID = uuid.New()
	losing := begin(t, func(ctx context.Context) (error, error) {
		_, err := second.ApplyEndpoint(ctx, later)
		return err, nil
	})
	f.blocked("second", losing.done)
	slow.open()
	if e := making.result(); e.Version != 1 || e.LaneID == 0 || e.PublicID != change.PublicID {
		t.Errorf("got %+v", e)
	}
	if err := losing.result(); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.lane`); n != 1 {
		t.Errorf("%d lanes, want 1", n)
	}
}

func TestOneOfManyWritersWins(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	errs := make([]error, 8)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { _, errs[i] = f.ApplyEndpoint(t.Context(), e.change(e.Generation+1)) })
	}
	group.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, ErrConflict) {
			t.Error(err)
		}
	}
	if got, err := f.Endpoint(t.Context(), "billing", "a"); won != 1 || err != nil || got.Version != e.Version+1 {
		t.Errorf("%d writers won, version %d, %v", won, got.Version, err)
	}
}

func TestATombstonedEndpointKeepsNoSecretAndGetsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.Headers = []byte("sealed headers") })
	f.post("", 2, e)
	for uid, want := range map[string]bool{"another": false} {
		if found, err := f.TombstoneEndpoint(t.Context(), "billing", "a", uid); found != want || err != nil {
			t.Errorf("uid %s: %v, %v; want %v", uid, found, err, want)
		}
	}
	if found, err := f.TombstoneEndpoint(t.Context(), "billing", "a", "uid-a"); !found || err != nil {
		t.Fatalf("%v, %v", found, err)
	}
	if found, err := f.TombstoneEndpoint(t.Context(), "billing", "a", "uid-a"); found || err != nil {
		t.Errorf("again: %v, %v; want it to be gone", found, err)
	}
	rows, err := f.Endpoints(t.Context(), []int64{e.ID, 1 << 40})
	if err != nil || len(rows) != 1 || !rows[0].Tombstoned || rows[0].Keys != nil || rows[0].Spec.Headers != nil || rows[0].LaneID != 0 || rows[0].Version <= e.Version {
		t.Errorf("got %+v, %v", rows, err)
	}
	if refs, err := f.LiveEndpoints(t.Context(), 0, 10); err != nil || len(refs) != 0 {
		t.Errorf("live: %+v, %v", refs, err)
	}
	if values, err := f.SealedValues(t.Context(), 0, 10); err != nil || len(values) != 0 {
		t.Errorf("sealed: %+v, %v", values, err)
	}
	f.wake("", e)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries", len(got))
	}
	// An object made anew under the name has a row, a public id and a lane of its own.
	again, err := f.ApplyEndpoint(t.Context(), EndpointChange{
		PublicID: uuid.New(), Namespace: "billing", Name: "a", NamespaceUID: "ns-1", UID: "uid-a2", Generation: 1, Spec: spec(),
	})
	if err != nil || again.ID == e.ID || again.PublicID == e.PublicID || again.LaneID == e.LaneID {
		t.Errorf("got %+v, %v", again, err)
	}
}

func TestLiveEndpointsAndSealedValuesComeInPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var want []string
	for _, name := range []string{"a", "b", "c"} {
		f.endpoint(name, func(p *EndpointSpec) { p.Headers = []byte("headers of " + name) })
		want = append(want, name)
	}
	var got []string
	var sealed []SealedValue
	for after := int64(0); ; {
		refs, err := f.LiveEndpoints(t.Context(), after, 2)
		if err != nil {
			t.Fatal(err)
		}
		values, err := f.SealedValues(t.Context(), after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(refs) == 0 {
			break
		}
		sealed = append(sealed, values...)
		for _, r := range refs {
			got, after = append(got, r.Name), r.ID
		}
	}
	if !slices.Equal(got, want) || len(sealed) != 6 {
		t.Errorf("got %v and %d ciphertexts, want %v and 6", got, len(sealed), want)
	}
	for _, v := range sealed {
		if want := map[string]string{ColumnKey: "sealed", ColumnHeaders: "headers of "}[v.Column]; want == "" || !bytes.HasPrefix(v.Sealed, []byte(want)) {
			t.Errorf("got %+v", v)
		}
	}
}

// A namespace that is made anew sees nothing of the former one's, and events go to its own endpoints alone.
func TestANamespaceMadeAnewIsAnotherTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	event := f.post("", 1, e)[0]
	before, err := f.Matching(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.RecordNamespace(t.Context(), "billing", "ns-1"); err != nil {
		t.Fatal(err)
	}
	if m, err := f.Matching(t.Context(), "billing"); err != nil || m.Version != before.Version {
		t.Errorf("the same uid again moved the version: %+v, %v", m, err)
	}
	if err := f.RecordNamespace(t.Context(), "billing", "ns-2"); err != nil {
		t.Fatal(err)
	}
	m, err := f.Matching(t.Context(), "billing")
	if err != nil || m.UID != "ns-2" || m.Version <= before.Version || len(m.Endpoints) != 0 {
		t.Errorf("got %+v, %v; want the new uid without endpoints", m, err)
	}
	if _, err := f.Event(t.Context(), "billing", "ns-2", event); !errors.Is(err, ErrNotFound) {
		t.Errorf("the new tenant sees the former one's event: %v", err)
	}
	if n, err := f.ForgetNamespace(t.Context(), "billing", "ns-1"); n != 1 || err != nil {
		t.Errorf("tombstoned %d, %v; want the former tenant's endpoint", n, err)
	}
	if again, err := f.Matching(t.Context(), "billing"); err != nil || again.UID != "ns-2" {
		t.Errorf("got %+v, %v: forgetting the former namespace took the new one along", again, err)
	}
	if n, err := f.BuryCancelled(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("buried %d, %v", n, err)
	}
	if n, err := f.ForgetNamespace(t.Context(), "billing", "ns-2"); n != 0 || err != nil {
		t.Errorf("tombstoned %d, %v", n, err)
	}
	gone, err := f.Matching(t.Context(), "billing")
	if err != nil || gone.UID != "" || gone.Version != 0 {
		t.Errorf("got %+v, %v; want nothing known", gone, err)
	}
	// Told of again, its version is not one that an ingest may still remember.
	if err := f.RecordNamespace(t.Context(), "billing", "ns-2"); err != nil {
		t.Fatal(err)
	}
	if again, err := f.Matching(t.Context(), "billing"); err != nil || again.Version <= m.Version {
		t.Errorf("got %+v, %v; want a version after %d", again, err, m.Version)
	}
}

func TestADatabaseHasOneOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	ours := Installation{Namespace: "postrider", Release: "main", ClusterUID: "cluster-1"}
	for _, step := range []struct {
		name string
		in   Installation
		take bool
		want error
	}{
		{"a dispatcher, which knows no cluster, is first", Installation{Namespace: "postrider", Release: "main"}, false, nil},
		{"then the controller, which does", ours, false, nil},
		{"again", ours, false, nil},
		{"the dispatcher again", Installation{Namespace: "postrider", Release: "main"}, false, nil},
		{"another release", Installation{Namespace: "postrider", Release: "other", ClusterUID: "cluster-1"}, false, ErrOwned},
		{"another namespace", Installation{Namespace: "elsewhere", Release: "main"}, false, ErrOwned},
		{"another cluster", Installation{Namespace: "postrider", Release: "main", ClusterUID: "cluster-2"}, false, ErrOwned},
		{"take over what is ours", ours, true, nil},
	} {
		if err := f.Own(t.Context(), step.in, step.take); !errors.Is(err, step.want) {
			t.Errorf("%s: got %v, want %v", step.name, err, step.want)
		}
	}
	if got, err := f.Endpoint(t.Context(), "billing", "a"); err != nil || got.Adoptable {
		t.Errorf("got %+v, %v; want it not adoptable", got, err)
	}
	moved := Installation{Namespace: "postrider", Release: "main", ClusterUID: "cluster-2"}
	if err := f.Own(t.Context(), moved, true); err != nil {
		t.Fatal(err)
	}
	if err := f.Own(t.Context(), ours, false); !errors.Is(err, ErrOwned) {
		t.Errorf("the former owner: got %v, want ErrOwned", err)
	}
	got, err := f.Endpoint(t.Context(), "billing", "a")
	if err != nil || !got.Adoptable {
		t.Fatalf("got %+v, %v; want it adoptable", got, err)
	}
	// The object of the new cluster adopts the row with its backlog: the lane stays.
	f.post("", 1, e)
	adopt := got.change(1)
	adopt.UID, adopt.NamespaceUID = "uid-new", "ns-new"
	if got, err := f.ApplyEndpoint(t.Context(), adopt); !errors.Is(err, ErrConflict) {
		t.Errorf("before the new uid of the namespace is told: got %+v, %v; want ErrConflict", got, err)
	}
	if err := f.RecordNamespace(t.Context(), "billing", "ns-new"); err != nil {
		t.Fatal(err)
	}
	adopted, err := f.ApplyEndpoint(t.Context(), adopt)
	if err != nil || adopted.Adoptable || adopted.ID != e.ID || adopted.LaneID != e.LaneID || adopted.NamespaceUID != "ns-new" {
		t.Errorf("got %+v, %v", adopted, err)
	}
	f.wake("", adopted)
	if claims := f.claim(10); len(claims) != 1 {
		t.Errorf("claimed %d deliveries of the adopted backlog, want 1", len(claims))
	}
	if m, err := f.Matching(t.Context(), "billing"); err != nil || m.UID != "ns-new" || len(m.Endpoints) != 1 {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestTwoInstallationsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	errs := make([]error, 8)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			errs[i] = f.Own(t.Context(), Installation{Namespace: "postrider", Release: string(rune('a' + i%2))}, false)
		})
	}
	group.Wait()
	owners := map[int]bool{}
	for i, err := range errs {
		if err == nil {
			owners[i%2] = true
		} else if !errors.Is(err, ErrOwned) {
			t.Error(err)
		}
	}
	if len(owners) != 1 {
		t.Errorf("%d installations own the database", len(owners))
	}
}

func TestHeadersSurviveTheirEncoding(t *testing.T) {
	t.Parallel()
	want := []Header{{"X-Team", "billing"}, {"Authorization", "Bearer <&>\u00e9"}}
	text, err := MarshalHeaders(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := UnmarshalHeaders(text); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if text, err := MarshalHeaders(nil); text != nil || err != nil {
		t.Errorf("no headers: got %q, %v; want nil", text, err)
	}
	if got, err := UnmarshalHeaders(nil); got != nil || err != nil {
		t.Errorf("got %v, %v; want nil", got, err)
	}
	if _, err := UnmarshalHeaders([]byte(`{"secret`)); err == nil || bytes.Contains([]byte(err.Error()), []byte("secret")) {
		t.Errorf("got %v, want an error that does not repeat the text", err)
	}
}

func TestEventTimeIsTheAcceptance(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	m, err := f.Matching(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	before := ask[time.Time](f, `SELECT clock_timestamp()`)
	got := f.accept([]NewEvent{{Namespace: "billing", NamespaceUID: "ns-1", Version: m.Version, Type: "t", ContentType: "c"}})[0]
	after := ask[time.Time](f, `SELECT clock_timestamp()`)
	if got.AcceptedAt.Before(before.Add(-clockTolerance)) || got.AcceptedAt.After(after.Add(clockTolerance)) {
		t.Errorf("accepted at %v, between %v and %v", got.AcceptedAt, before, after)
	}
}
