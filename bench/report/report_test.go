package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAFigureIsTheMedianWithItsSpread(t *testing.T) {
	t.Parallel()
	got := NewFigures([]map[string]float64{{"a": 3, "b": 1}, {"a": 1}, {"a": 2, "b": 2, "c": math.NaN()}},
		map[string]float64{"lost_total": 0}, map[string]any{"cores": 2})
	want := Figures{
		"a": 2.0, "a_min": 1.0, "a_max": 3.0, "b": 1.5, "b_min": 1.0, "b_max": 2.0,
		"lost_total": 0.0, "lost_total_min": 0.0, "lost_total_max": 0.0, "cores": 2,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRatiosAreOfTheSameRoundAndOnlyWhereBothAreThere(t *testing.T) {
	t.Parallel()
	round := map[string]float64{
		"baseline_http_per_s": 20_000, "baseline_db_per_s": 20_000, "drain_per_s_postrider": 8_000,
		"drain_per_s_river_64": 3_000, "drain_per_s_river_256": 4_000,
	}
	AddRatios(round)
	for key, want := range map[string]float64{
		"baseline_limit_per_s": 10_000, "ratio_drain_vs_limit": 0.8, "drain_per_s_river_tuned": 4_000, "ratio_drain_vs_river_tuned": 2,
	} {
		if got := round[key]; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	for _, key := range []string{"ratio_accept_deliver_vs_limit", "ratio_drain_many_pending", "baseline_accept_deliver_per_s"} {
		if got, ok := round[key]; ok {
			t.Errorf("%s: got %v, want none", key, got)
		}
	}
}

func TestFiguresAreReadBackAsTheyWere(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "deep", "results.json")
	want := Figures{"a": 1.5, "scale": "full"}
	if err := want.Write(file); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file)
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// sample has a figure for every goal, and one that misses it.
func sample() Figures {
	f := Figures{"cores": 2.0, "memory_gib": 24.0, "rounds": 5.0, "scale": "full", "river_version": "v0", "postgres_version": "15", "go_version": "1"}
	for _, g := range goals {
		f[g.key], f[g.key+"_min"], f[g.key+"_max"] = g.bound, g.bound/2, g.bound*2
	}
	f["ratio_drain_vs_limit"] = 0.1
	return f
}

func TestThePageSaysWhichGoalIsMissed(t *testing.T) {
	t.Parallel()
	files, err := Files(sample())
	if err != nil {
		t.Fatal(err)
	}
	missed := 0
	for line := range strings.Lines(string(files["performance.md"])) {
		if strings.HasSuffix(line, "| **no** |\n") {
			missed++
			if !strings.Contains(line, "against the limit *L*") {
				t.Errorf("missed: %s", line)
			}
		}
	}
	if missed != 1 {
		t.Errorf("%d goals are missed, want 1", missed)
	}
	for name, text := range files {
		if filepath.Ext(name) != ".svg" {
			continue
		}
		for d := xml.NewDecoder(bytes.NewReader(text)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
	}
}

func TestThePageSaysWhenARunWasShortOrDisturbed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		key   string
		value any
		says  string
	}{
		"short":     {"scale", "small", "too short to rely on"},
		"disturbed": {"cpu_percent_others", 40.0, "Other programs used 40 %"},
	} {
		for _, given := range []bool{false, true} {
			f := sample()
			if given {
				f[tc.key] = tc.value
			}
			files, err := Files(f)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(string(files["performance.md"]), tc.says); got != given {
				t.Errorf("%s: it says so: %v, want %v", name, got, given)
			}
		}
	}
}

func TestEveryGoalHasALabelForTheChart(t *testing.T) {
	t.Parallel()
	for _, g := range goals {
		if g.label == "" {
			t.Errorf("%s has none", g.key)
		}
	}
}

// The page in docs is what the results say.
func TestThePageIsOfTheLatestResults(t *testing.T) {
	t.Parallel()
	figures, err := Read("../results/latest.json")
	if err != nil {
		t.Fatal(err)
	}
	files, err := Files(figures)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		got, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil {
			t.Errorf("%v; run: make bench-report", err)
			continue
		}
		if !bytes.Equal(got, files[name]) {
			t.Errorf("docs/%s is not what bench/results/latest.json says; run: make bench-report", name)
		}
	}
}

func TestNumbersAreWrittenAsPeopleReadThem(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0.00", 0.0057: "0.0057", 0.8: "0.80", 3.254: "3.25", 12.34: "12.3", 123.4: "123", 14300: "14,300", 3000000: "3,000,000"} {
		if got := short(v); got != want {
			t.Errorf("%v: got %q, want %q", v, got, want)
		}
	}
}
