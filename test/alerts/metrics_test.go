package alerts

import (
	"encoding/json"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

const dashboardFile = "../../charts/postrider/files/dashboard.json"

// targetLabels are not ours: Prometheus adds them when it reads the metrics of a pod, or makes them of histograms.
var targetLabels = map[string]bool{"namespace": true, "pod": true, "le": true}

func TestAlertsAndDashboardAskForMetricsThatExist(t *testing.T) {
	t.Parallel()
	known := literals(t)
	asked := 0
	check := func(where, query string) {
		expression, err := newParser().ParseExpr(strings.ReplaceAll(query, "$namespace", "a"))
		if err != nil {
			t.Errorf("%s: %s: %v", where, query, err)
			return
		}
		for _, name := range names(expression) {
			asked++
			if !exists(known, name) {
				t.Errorf("%s asks for metric %s, which the code does not have", where, name)
			}
		}
		for _, name := range labelNames(expression) {
			if !targetLabels[name] && !known[name] {
				t.Errorf("%s asks for label %s, which no metric of the code has", where, name)
			}
		}
	}
	for name, rule := range alertingRules(t) {
		check("alert "+name, rule.Query().String())
	}
	for title, queries := range dashboard(t) {
		for _, query := range queries {
			check("panel "+title, query)
		}
	}
	if asked < 40 {
		t.Errorf("only %d metrics were looked at; the test does not see the queries", asked)
	}
	if exists(known, "postrider_no_such_metric_total") {
		t.Error("the test finds a metric that does not exist")
	}
}

func exists(known map[string]bool, name string) bool {
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		whole, ok := strings.CutSuffix(name, suffix)
		short, prefixed := strings.CutPrefix(whole, "postrider_")
		// Some packages write the names of metrics whole, others without the prefix.
		if ok && prefixed && (known[whole] || known[short]) {
			return true
		}
	}
	return false
}

// literals are the strings in the files that declare metrics.
func literals(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, file := range []string{"dispatcher/metrics.go", "ingest/metrics.go", "controllers/metrics.go", "cmd/postrider/observe.go", "cmd/postrider/follow.go", "cmd/postrider/schema.go"} {
		parsed, err := goparser.ParseFile(token.NewFileSet(), filepath.Join("../..", file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					all[text] = true
				}
			}
			return true
		})
	}
	return all
}

func names(expression parser.Expr) []string {
	var all []string
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		for _, m := range selector.LabelMatchers {
			if m.Name == model.MetricNameLabel {
				all = append(all, strings.Split(m.Value, "|")...)
			}
		}
		return nil
	})
	return all
}

func labelNames(expression parser.Expr) []string {
	var all []string
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			for _, m := range n.LabelMatchers {
				if m.Name != model.MetricNameLabel {
					all = append(all, m.Name)
				}
			}
		case *parser.AggregateExpr:
			all = append(all, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				all = append(all, n.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	return all
}

// dashboard returns the queries of each panel.
func dashboard(t *testing.T) map[string][]string {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(read(t, dashboardFile), &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	all := map[string][]string{}
	for _, p := range d.Panels {
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 {
			t.Errorf("panel %s has no query", p.Title)
		}
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], target.Expr)
		}
	}
	return all
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
