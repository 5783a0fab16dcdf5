package main

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// The smallest run, so that nothing here rots: every kind of process is started and all figures of a drain are made.
func TestDrainLosesNothingAndGivesItsFigures(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var progress strings.Builder
	o := options{scale: "test", only: "baseline_http,baseline_db,baseline_insert,drain,river_64", rounds: 2, out: t.TempDir() + "/results.json"}
	figures, err := execute(ctx, o, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	for _, key := range []string{
		"drain_per_s_postrider", "drain_per_s_river_tuned", "baseline_http_per_s", "baseline_db_per_s", "baseline_insert_per_s",
		"ratio_drain_vs_limit", "ratio_drain_vs_river_tuned", "claims_per_delivery", "wal_bytes_per_delivery",
	} {
		median, least, most := number(t, figures[key]), number(t, figures[key+"_min"]), number(t, figures[key+"_max"])
		if median <= 0 || least > median || most < median {
			t.Errorf("%s: got median %v, least %v, greatest %v", key, median, least, most)
		}
	}
	for _, key := range []string{"lost_total", "lost_total_river"} {
		if got := number(t, figures[key]); got != 0 {
			t.Errorf("%s: got %v, want 0", key, got)
		}
	}
	if got := figures["rounds"]; got != 2 {
		t.Errorf("rounds: got %v, want 2", got)
	}
}

func number(t *testing.T, v any) float64 {
	t.Helper()
	n, ok := v.(float64)
	if !ok {
		t.Fatalf("a figure is missing, or no number: %v", v)
	}
	return n
}

func TestEveryUnitIsChosenByName(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		list string
		want []string
	}{
		{"drain", []string{"drain"}},
		{"river_*", []string{"river_64", "river_256", "river_1000", "river_default"}},
		{"idle,baseline_db", []string{"baseline_db", "idle"}},
	} {
		chosen, err := choose(tc.list)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]string, len(chosen))
		for i, u := range chosen {
			got[i] = u.name
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.list, got, tc.want)
		}
	}
	if _, err := choose("nothing"); err == nil || !strings.Contains(err.Error(), "drain_thousand") {
		t.Errorf("an unknown name: got %v, want what there is", err)
	}
}

func TestAQuantileIsInterpolatedWithinItsBucket(t *testing.T) {
	t.Parallel()
	const name = "m"
	before := metrics{`m_bucket{le="0.001"}`: 100, `m_bucket{le="0.01"}`: 100, `m_bucket{le="+Inf"}`: 100}
	after := metrics{`m_bucket{le="0.001"}`: 150, `m_bucket{le="0.01"}`: 200, `m_bucket{le="+Inf"}`: 200}
	for _, tc := range []struct{ q, want float64 }{{0.25, 0.0005}, {0.5, 0.001}, {0.75, 0.0055}, {1, 0.01}} {
		if got := after.quantile(before, name, tc.q); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("quantile %v: got %v, want %v", tc.q, got, tc.want)
		}
	}
	if got := before.quantile(before, name, .5); !math.IsNaN(got) {
		t.Errorf("no observation: got %v, want NaN", got)
	}
}
