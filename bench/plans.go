package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A sampled is a statement with its plan, as the server's log has it.
type sampled struct {
	statement string // in one line
	plan      []string
	ms        float64
}

var planLogged = regexp.MustCompile(`^\S+ \S+ \S+ \[\d+\] (\S+) LOG:  duration: ([\d.]+) ms  plan:$`)

// plansIn reads the sampled plans of one database's statements from what the log has from some byte on, and returns for each
// statement the plan of the one that took the median of the time, the statements with the most time first.
func plansIn(log string, from int64, database string) (plans string, err error) {
	f, err := os.Open(log)
	if err != nil {
		return "", fmt.Errorf("read the server's log: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return "", fmt.Errorf("read the server's log: %w", err)
	}
	all, err := readPlans(f, database)
	if err != nil {
		return "", fmt.Errorf("read the server's log: %w", err)
	}
	return tellPlans(all), nil
}

func readPlans(log io.Reader, database string) (all []sampled, err error) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 16<<20) // a line may tell the values of a thousand parameters
	var open *sampled         // whose lines are being read
	for lines.Scan() {
		line := lines.Text()
		if m := planLogged.FindStringSubmatch(line); m != nil && m[1] == database {
			ms, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				return nil, err
			}
			all = append(all, sampled{ms: ms})
			open = &all[len(all)-1]
			continue
		}
		text, indented := strings.CutPrefix(line, "\t")
		switch {
		case !indented:
			open = nil
		case open != nil:
			open.add(text)
		}
	}
	return all, lines.Err()
}

// add takes in the next line: the statement's, until the first of the plan.
func (s *sampled) add(line string) {
	switch {
	case len(s.plan) > 0 || strings.Contains(line, "  (cost="):
		s.plan = append(s.plan, line)
	case strings.HasPrefix(line, "Query Parameters: "): // from Postgres 16 on
	default:
		words := append(strings.Fields(s.statement), strings.Fields(strings.TrimPrefix(line, "Query Text: "))...)
		s.statement = strings.Join(words, " ")
	}
}

// tellPlans leaves out what nobody would look at: statements without a table, those of which there is one sample alone, and
// those that take little.
func tellPlans(all []sampled) string {
	by := map[string][]sampled{}
	for _, s := range all {
		if !strings.HasPrefix(strings.Join(s.plan, ""), "Result ") {
			by[s.statement] = append(by[s.statement], s)
		}
	}
	kinds := make([][]sampled, 0, len(by))
	for _, of := range by {
		if len(of) > 1 {
			slices.SortFunc(of, func(a, b sampled) int { return cmp.Compare(a.ms, b.ms) })
			kinds = append(kinds, of)
		}
	}
	slices.SortFunc(kinds, func(a, b []sampled) int {
		return cmp.Or(cmp.Compare(sum(b), sum(a)), strings.Compare(a[0].statement, b[0].statement))
	})
	const most, width = 8, 120
	var text strings.Builder
	for _, of := range kinds[:min(len(kinds), most)] {
		s := of[len(of)/2]
		fmt.Fprintf(&text, "%s\n%.3f ms, the median of %d samples\n    %s\n\n", s.statement[:min(width, len(s.statement))], s.ms, len(of), strings.Join(s.plan, "\n    "))
	}
	return text.String()
}

func sum(of []sampled) (ms float64) {
	for _, s := range of {
		ms += s.ms
	}
	return ms
}

// size of a file in bytes.
func size(file string) (int64, error) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, fmt.Errorf("look at the server's log: %w", err)
	}
	return info.Size(), nil
}
