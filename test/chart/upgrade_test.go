package chart

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
)

// A pod of Postgres that is replaced is an outage. A version of the chart that says nothing new about it leaves it alone.
func TestAnotherVersionOfTheChartLeavesPostgresAlone(t *testing.T) {
	t.Parallel()
	next, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	next.Metadata.Version, next.Metadata.AppVersion = "9.9.9", "9.9.9"
	after, err := renderChart(next, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := render(t, scenario{})
	set := func(r release) appsv1.StatefulSetSpec {
		return as[appsv1.StatefulSet](t, r.get(t, "StatefulSet", "postrider-postgres")).Spec
	}
	if diff := cmp.Diff(set(before), set(after)); diff != "" {
		t.Errorf("the pod of Postgres is replaced:\n%s", diff)
	}
	if cmp.Equal(before.pod(t, "postrider-ingest").spec, after.pod(t, "postrider-ingest").spec) {
		t.Error("another version of the chart has the same image: this shows nothing")
	}
}

// The Lease goes with the ServiceAccount that the chart makes. An account of somebody else's stays, and the Lease with it.
func TestTheNotesSayWhenTheLeaseStays(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]bool{"": false, `serviceAccounts: {controller: {name: theirs}}`: true} {
		if got := strings.Contains(render(t, scenario{values: values}).notes, "Lease postrider-controller"); got != want {
			t.Errorf("%s: the notes speak of the Lease: %t, want %t", values, got, want)
		}
	}
}
