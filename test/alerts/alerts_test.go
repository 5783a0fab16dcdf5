package alerts

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const rulesFile = "../../charts/postrider/files/alerts.yaml"

// healthy are the series of an installation in which nothing is wrong, for two hours of a sample each minute.
const healthy = `
  postrider_build_info{namespace="a", pod="d-1"} 1x120
  postrider_build_info{namespace="a", pod="d-2"} 1x120
  postrider_build_info{namespace="a", pod="i-1"} 1x120
  postrider_build_info{namespace="a", pod="c-1"} 1x120
  postrider_schema_version{namespace="a", pod="d-1"} 2x120
  postrider_schema_version{namespace="a", pod="d-2"} 2x120
  postrider_schema_wanted{namespace="a", pod="d-1"} 2x120
  postrider_schema_wanted{namespace="a", pod="d-2"} 1x120
  postrider_settings_refused{namespace="a", pod="d-1"} 0x120
  postrider_senders{namespace="a", pod="d-1"} 256x120
  postrider_senders{namespace="a", pod="d-2"} 256x120
  postrider_due{namespace="a", pod="d-1"} 3 0 5 2 0 7 1 0 4 0x111
  postrider_due{namespace="a", pod="d-2"} 3 0 5 2 0 7 1 0 4 0x111
  postrider_oldest_due_age_seconds{namespace="a", pod="d-1"} 2x120
  postrider_deliveries_total{namespace="a", pod="d-1", outcome="delivered"} 0+60x120
  postrider_deliveries_total{namespace="a", pod="d-1", outcome="dead"} 4x120
  postrider_leases_expired_total{namespace="a", pod="d-1"} 2x120
  postrider_partitions_ahead{namespace="a", pod="d-1"} 3x120
  postrider_partitions_ahead{namespace="a", pod="d-2"} 3x120
  postrider_chore_age_seconds{namespace="a", pod="d-1", chore="retention"} 30x120
  postrider_chore_age_seconds{namespace="a", pod="d-2", chore="retention"} 0+60x120
  postrider_chore_errors_total{namespace="a", pod="d-1", chore="retention"} 0x120
  postrider_events_deliveries_total{namespace="a", pod="i-1"} 0+60x120
  postrider_ingest_requests_in_flight{namespace="a", pod="i-1"} 1x120
  postrider_ingest_requests_total{namespace="a", pod="i-1", code="202"} 0+60x120
  postrider_ingest_requests_total{namespace="a", pod="i-1", code="503"} 0x120
  postrider_status_lag_seconds{namespace="a", pod="c-1"} 0x120
  postrider_sweep_refused_endpoints{namespace="a", pod="c-1"} 0x120
`

// sick replaces series of the healthy ones by these: a line without values only takes its series away.
func sick(lines ...string) string {
	all := strings.Split(strings.TrimSpace(healthy), "\n")
	for _, line := range lines {
		series, values, _ := strings.Cut(strings.TrimSpace(line), "} ")
		all = slices.DeleteFunc(all, func(existing string) bool {
			return strings.HasPrefix(strings.TrimSpace(existing), strings.TrimSuffix(series, "}"))
		})
		if values != "" {
			all = append(all, line)
		}
	}
	return strings.Join(all, "\n")
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		series string
		quiet  time.Duration // nothing fires yet
		at     time.Duration
		fires  []string
	}{
		{"a healthy installation", healthy, 0, 2 * time.Hour, nil},
		{
			"due grows and nothing is attempted",
			sick(`postrider_due{namespace="a", pod="d-1"} 0+10x120`, `postrider_due{namespace="a", pod="d-2"} 0+10x120`,
				`postrider_deliveries_total{namespace="a", pod="d-1", outcome="delivered"} 100x120`),
			10 * time.Minute, 30 * time.Minute,
			[]string{"PostriderNothingDelivered"},
		},
		{
			"due grows while deliveries are made: more dispatchers are needed, it is no outage",
			sick(`postrider_due{namespace="a", pod="d-1"} 0+10x120`), 0, 2 * time.Hour, nil,
		},
		{
			"due grows and every attempt fails: the receivers' trouble",
			sick(`postrider_due{namespace="a", pod="d-1"} 0+10x120`, `postrider_deliveries_total{namespace="a", pod="d-1", outcome="delivered"} 100x120`,
				`postrider_deliveries_total{namespace="a", pod="d-1", outcome="retry"} 0+60x120`), 0, 2 * time.Hour, nil,
		},
		{
			"events are accepted without any dispatcher",
			sick(`postrider_senders{`, `postrider_build_info{namespace="a", pod="d-1"}`, `postrider_build_info{namespace="a", pod="d-2"}`),
			4 * time.Minute, 20 * time.Minute,
			[]string{"PostriderNoDispatcher"},
		},
		{
			"deliveries wait for six minutes", sick(`postrider_oldest_due_age_seconds{namespace="a", pod="d-1"} 360x120`),
			4 * time.Minute, 10 * time.Minute,
			[]string{"PostriderDeliveriesLate"},
		},
		{
			"deliveries wait for four minutes", sick(`postrider_oldest_due_age_seconds{namespace="a", pod="d-1"} 240x120`), 0, 2 * time.Hour, nil,
		},
		{
			"a dead letter each minute", sick(`postrider_deliveries_total{namespace="a", pod="d-1", outcome="dead"} 0+1x120`),
			5 * time.Minute, 40 * time.Minute,
			[]string{"PostriderDeadLettersRising"},
		},
		{
			"a dead letter each ten minutes", sick(`postrider_deliveries_total{namespace="a", pod="d-1", outcome="dead"} 0+0.1x120`), 0, 2 * time.Hour, nil,
		},
		{
			"leases expire all the time", sick(`postrider_leases_expired_total{namespace="a", pod="d-1"} 0+1x120`),
			14 * time.Minute, 30 * time.Minute,
			[]string{"PostriderLeasesExpiring"},
		},
		{
			"one dispatcher was killed", sick(`postrider_leases_expired_total{namespace="a", pod="d-1"} 0x10 50x110`), 0, time.Hour, nil,
		},
		{
			"a dispatcher waits for the database", sick(`postrider_senders{namespace="a", pod="d-2"}`, `postrider_schema_version{namespace="a", pod="d-2"}`),
			9 * time.Minute, 20 * time.Minute,
			[]string{"PostriderPartWaits"},
		},
		{
			"a dispatcher waits for the schema",
			sick(`postrider_senders{namespace="a", pod="d-2"}`, `postrider_schema_wanted{namespace="a", pod="d-2"} 3x120`),
			9 * time.Minute, 20 * time.Minute,
			[]string{"PostriderSchemaBehind"},
		},
		{
			"the schema was behind while it was migrated",
			sick(`postrider_schema_wanted{namespace="a", pod="d-2"} 3x120`, `postrider_schema_version{namespace="a", pod="d-2"} 2x8 3x112`),
			0, time.Hour, nil,
		},
		{
			"changed settings are refused", sick(`postrider_settings_refused{namespace="a", pod="d-1"} 1x120`),
			4 * time.Minute, 10 * time.Minute,
			[]string{"PostriderSettingsRefused"},
		},
		{
			"tomorrow's partition is missing",
			sick(`postrider_partitions_ahead{namespace="a", pod="d-1"} 0x120`, `postrider_partitions_ahead{namespace="a", pod="d-2"} 0x120`),
			14 * time.Minute, 20 * time.Minute,
			[]string{"PostriderPartitionMissing"},
		},
		{
			"a chore fails on every dispatcher",
			sick(`postrider_chore_age_seconds{namespace="a", pod="d-1", chore="retention"} 0+60x120`, `postrider_chore_errors_total{namespace="a", pod="d-1", chore="retention"} 0+1x120`),
			time.Hour, 2 * time.Hour,
			[]string{"PostriderChoresStuck"},
		},
		{
			"a tenth of the requests fail", sick(`postrider_ingest_requests_total{namespace="a", pod="i-1", code="503"} 0+7x120`),
			9 * time.Minute, 20 * time.Minute,
			[]string{"PostriderAcceptingFails"},
		},
		{
			"a hundredth of the requests fail", sick(`postrider_ingest_requests_total{namespace="a", pod="i-1", code="503"} 0+0.6x120`), 0, 2 * time.Hour, nil,
		},
		{
			"the status is two minutes behind", sick(`postrider_status_lag_seconds{namespace="a", pod="c-1"} 120x120`),
			9 * time.Minute, 15 * time.Minute,
			[]string{"PostriderStatusBehind"},
		},
		{
			"the sweep waits", sick(`postrider_sweep_refused_endpoints{namespace="a", pod="c-1"} 40x120`),
			0, 2 * time.Minute,
			[]string{"PostriderSweepRefused"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			firing := evaluate(t, c.series, c.quiet, c.at)
			if c.quiet > 0 && len(firing[c.quiet]) > 0 {
				t.Errorf("after %s: firing %v, want none yet", c.quiet, firing[c.quiet])
			}
			want := slices.Sorted(slices.Values(c.fires))
			if got := firing[c.at]; !slices.Equal(got, want) {
				t.Errorf("after %s: firing %v, want %v", c.at, got, want)
			}
		})
	}
}

// Every alert is shown to fire by a case above, and says what to do.
func TestEveryAlertIsTestedAndExplained(t *testing.T) {
	t.Parallel()
	source := string(read(t, "alerts_test.go"))
	guide := string(read(t, "../../docs/troubleshooting.md"))
	for name, rule := range alertingRules(t) {
		if !strings.Contains(source, `[]string{"`+name+`"}`) {
			t.Errorf("%s: no case of TestAlerts makes it fire", name)
		}
		_, anchor, found := strings.Cut(rule.Annotations().Get("runbook_url"), "docs/troubleshooting.md#")
		if !found || !hasHeading(guide, anchor) {
			t.Errorf("%s: docs/troubleshooting.md has no heading for #%s", name, anchor)
		}
		if rule.Labels().Get("severity") == "" || rule.Annotations().Get("summary") == "" || rule.Annotations().Get("description") == "" {
			t.Errorf("%s lacks its severity, summary or description", name)
		}
	}
}

func hasHeading(text, anchor string) bool {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		heading := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		heading = strings.NewReplacer(" ", "-", "'", "", "’", "", "`", "").Replace(heading)
		if heading == anchor {
			return true
		}
	}
	return false
}

// evaluate evaluates the rules each minute, and returns the alerts that fire at the times that are asked for.
func evaluate(t *testing.T, series string, times ...time.Duration) map[time.Duration][]string {
	t.Helper()
	options := promqltest.LazyLoaderOpts{StartTime: time.Unix(0, 0).UTC(), Parser: newParser()}
	loader, err := promqltest.NewLazyLoader("load 1m\n"+series, options)
	if err != nil {
		t.Fatalf("the series of the test: %v", err)
	}
	defer func() {
		if err := loader.Close(); err != nil {
			t.Error(err)
		}
	}()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:    rules.EngineQueryFunc(loader.QueryEngine(), loader.Storage()),
		AppendableV2: loader.Storage(),
		Context:      t.Context(),
		NotifyFunc:   func(context.Context, string, ...*rules.Alert) {},
		Logger:       slog.New(slog.DiscardHandler),
		Parser:       newParser(),
	})
	groups, problems := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, rulesFile)
	if len(problems) > 0 {
		t.Fatalf("%s: %v", rulesFile, problems)
	}
	firing := map[time.Duration][]string{}
	start := time.Unix(0, 0).UTC()
	for elapsed := time.Duration(0); elapsed <= slices.Max(times); elapsed += time.Minute {
		at := start.Add(elapsed)
		loader.WithSamplesTill(at, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range groups {
				group.Eval(loader.Context(), at)
			}
		})
		firing[elapsed] = firingNow(t, groups)
	}
	return firing
}

func firingNow(t *testing.T, groups map[string]*rules.Group) []string {
	t.Helper()
	names := map[string]bool{}
	for _, group := range groups {
		for _, rule := range group.Rules() {
			if err := rule.LastError(); err != nil {
				t.Fatalf("rule %s: %v", rule.Name(), err)
			}
			alert, ok := rule.(*rules.AlertingRule)
			if !ok {
				continue
			}
			for _, active := range alert.ActiveAlerts() {
				if active.State != rules.StateFiring {
					continue
				}
				names[alert.Name()] = true
				if active.Labels.Get("namespace") != "a" {
					t.Errorf("%s does not say in which namespace: %s", alert.Name(), active.Labels)
				}
				if text := active.Annotations.Get("description"); strings.Contains(text, "error expanding") || strings.Contains(text, "<no value>") {
					t.Errorf("%s: its description is %q", alert.Name(), text)
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func alertingRules(t *testing.T) map[string]*rules.AlertingRule {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{Context: t.Context(), Logger: slog.New(slog.DiscardHandler), Parser: newParser()})
	groups, problems := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, rulesFile)
	if len(problems) > 0 {
		t.Fatalf("%s: %v", rulesFile, problems)
	}
	all := map[string]*rules.AlertingRule{}
	for _, group := range groups {
		for _, rule := range group.Rules() {
			if alert, ok := rule.(*rules.AlertingRule); ok {
				all[alert.Name()] = alert
			}
		}
	}
	return all
}

func newParser() parser.Parser { return parser.NewParser(parser.Options{}) }
