package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// Figures are the results of a run, flat: for each figure its median over the rounds under its key, and the least and the
// greatest under key_min and key_max; and facts, which are numbers or texts.
type Figures map[string]any

// NewFigures summarises rounds. Totals are of the whole run, and facts what it ran on.
func NewFigures(rounds []map[string]float64, totals map[string]float64, facts map[string]any) Figures {
	samples := map[string][]float64{}
	for _, round := range rounds {
		for key, value := range round {
			if !math.IsNaN(value) && !math.IsInf(value, 0) {
				samples[key] = append(samples[key], value)
			}
		}
	}
	for key, value := range totals {
		samples[key] = []float64{value}
	}
	f := Figures{}
	for key, values := range samples {
		slices.Sort(values)
		f[key], f[key+"_min"], f[key+"_max"] = rounded(median(values)), rounded(values[0]), rounded(values[len(values)-1])
	}
	for key, value := range facts {
		f[key] = value
	}
	return f
}

func median(sorted []float64) float64 {
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// rounded to four significant digits: more would pretend to be exact.
func rounded(v float64) float64 {
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return v
	}
	return short
}

// Read reads what Write wrote.
func Read(file string) (Figures, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	var f Figures
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("read the results in %s: %w", file, err)
	}
	return f, nil
}

// Write keeps the figures, keys in order.
func (f Figures) Write(file string) error {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the folder of the results: %w", err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// number returns a figure; false: there is none.
func (f Figures) number(key string) (float64, bool) {
	switch v := f[key].(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	}
	return 0, false
}
