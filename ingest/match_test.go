package ingest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPatternsMatch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		pattern string
		matches []string
		not     []string
	}{
		{"*", []string{"a", "a.b", "a.b.c"}, nil},
		{"invoice.paid", []string{"invoice.paid"}, []string{"invoice", "invoice.paid.late", "Invoice.paid", "invoice.Paid", "invoice.paid_"}},
		{"invoice.*", []string{"invoice.paid", "invoice.payment.failed"}, []string{"invoice", "invoices.paid", "x.invoice.paid"}},
		{"invoice.*.failed", []string{"invoice.payment.failed"}, []string{"invoice.failed", "invoice.payment.card.failed", "invoice.payment.failed.twice"}},
		{"*.created", []string{"refund.created"}, []string{"created", "a.b.created", "refund.created.x"}},
		{"*.*", []string{"a.b", "a.b.c"}, []string{"a"}},
		{"*.*.c", []string{"a.b.c"}, []string{"a.c", "a.b.b.c"}},
		{"a.*.c.*", []string{"a.b.c.d", "a.b.c.d.e"}, []string{"a.b.c", "a.c.d"}},
		{"a", []string{"a"}, []string{"a.b", "b"}},
	}
	for _, tt := range tests {
		t.Run(tt.pattern, func(t *testing.T) {
			t.Parallel()
			var p patterns
			if err := p.add(tt.pattern, 7); err != nil {
				t.Fatal(err)
			}
			for _, eventType := range tt.matches {
				if diff := cmp.Diff([]int{7}, p.match(eventType)); diff != "" {
					t.Errorf("%s does not match", eventType)
				}
			}
			for _, eventType := range tt.not {
				if len(p.match(eventType)) > 0 {
					t.Errorf("%s matches", eventType)
				}
			}
		})
	}
}

func TestEachEndpointMatchesOnceAndInOrder(t *testing.T) {
	t.Parallel()
	var p patterns
	for endpoint, all := range [][]string{{"*", "a.*"}, {"x.y"}, {"a.b", "a.*", "*.b"}, {"*.b", "a.b"}} {
		for _, pattern := range all {
			if err := p.add(pattern, endpoint); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]int{0, 2, 3}, p.match("a.b")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestInvalidPatternsMatchNothing(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"", ".", "a.", ".a", "a..b", "a*", "**", "a.*b", "a b", "é"} {
		var p patterns
		if err := p.add(pattern, 1); err == nil {
			t.Errorf("%q is taken", pattern)
		}
		if got := p.match("a.b"); len(got) > 0 {
			t.Errorf("%q matches", pattern)
		}
	}
}

// matchesSlowly is the rule of event type patterns written another way.
func matchesSlowly(pattern, eventType string) bool {
	rest := ""
	if last, cut := strings.CutSuffix(pattern, "*"); cut && (last == "" || strings.HasSuffix(last, ".")) {
		pattern, rest = last, `[^.]+(\.[^.]+)*`
	}
	text := regexp.QuoteMeta(pattern)
	text = strings.ReplaceAll(text, `\*`, `[^.]+`)
	return regexp.MustCompile("^" + text + rest + "$").MatchString(eventType)
}

func FuzzPatternsAgreeWithTheRule(f *testing.F) {
	f.Add("a.*", "*.b.*", "a.b.c")
	f.Add("*", "a", "a")
	f.Add("*.*.c", "a.*.c", "a.b.c")
	f.Add("a.b", "a.*.b", "a.b")
	f.Fuzz(func(t *testing.T, one, other, eventType string) {
		if checkType(eventType) != "" {
			return
		}
		var p patterns
		var want []int
		for i, pattern := range []string{one, other} {
			if p.add(pattern, i) == nil && matchesSlowly(pattern, eventType) {
				want = append(want, i)
			}
		}
		if diff := cmp.Diff(want, p.match(eventType)); diff != "" {
			t.Fatalf("patterns %q, %q and type %q (-want +got):\n%s", one, other, eventType, diff)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	var p patterns
	for i, prefix := range strings.Split(strings.Repeat("invoice payment refund order ", 250), " ") {
		if err := p.add(strings.TrimSpace("x"+prefix)+".*", i); err != nil {
			b.Fatal(err)
		}
	}
	if err := p.add("invoice.*", 1); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p.match("invoice.payment.failed")
	}
}
