package main

import (
	"strings"
	"testing"
	"time"
)

func TestReport(t *testing.T) {
	t.Parallel()
	const packagePasses = `{"Action":"pass","Package":"p","Elapsed":1.5}`
	for name, c := range map[string]struct {
		events []string
		ok     bool
		says   []string
		silent []string
	}{
		"passing tests are counted and silent": {
			events: []string{`{"Action":"output","Package":"p","Test":"T","Output":"chatter\n"}`, `{"Action":"pass","Package":"p","Test":"T"}`, packagePasses},
			ok:     true, says: []string{"ok    p ", "1.5s", "tests: 1 passed, 0 failed, 0 skipped, in 1 packages"}, silent: []string{"chatter"},
		},
		"a failing test is shown with its output": {
			events: []string{`{"Action":"output","Package":"p","Test":"T","Output":"got 1, want 2\n"}`, `{"Action":"fail","Package":"p","Test":"T"}`, `{"Action":"fail","Package":"p"}`},
			says:   []string{"got 1, want 2\n", "FAIL  p\n", "FAIL  p T\n", "0 passed, 1 failed"},
		},
		"a skipped test fails the run": {
			events: []string{`{"Action":"skip","Package":"p","Test":"T"}`, packagePasses},
			says:   []string{"SKIP  p T", "0 passed, 0 failed, 1 skipped"},
		},
		"a panic is shown although its test never ended": {
			events: []string{`{"Action":"output","Package":"p","Test":"T","Output":"panic: no\n"}`, `{"Action":"output","Package":"p","Output":"FAIL p 0.1s\n"}`, `{"Action":"fail","Package":"p"}`},
			says:   []string{"panic: no\n", "FAIL p 0.1s\n", "FAIL  p\n"},
		},
		"a build failure is shown": {
			events: []string{`{"ImportPath":"p","Action":"build-output","Output":"undefined: x\n"}`, `{"Action":"fail","Package":"p","FailedBuild":"p"}`},
			says:   []string{"undefined: x\n", "FAIL  p\n"},
		},
		"a package without tests is not counted": {
			events: []string{`{"Action":"skip","Package":"p"}`},
			ok:     true, says: []string{"in 0 packages"}, silent: []string{"SKIP"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(strings.Join(c.events, "\n"))); err != nil {
				t.Fatal(err)
			}
			if ok := r.summary(time.Second); ok != c.ok {
				t.Errorf("all well: got %v, want %v", ok, c.ok)
			}
			for _, want := range c.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output lacks %q:\n%s", want, &out)
				}
			}
			for _, unwanted := range c.silent {
				if strings.Contains(out.String(), unwanted) {
					t.Errorf("output has %q:\n%s", unwanted, &out)
				}
			}
		})
	}
}

func TestWhatIsNotJSONIsPassedOn(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := newReport(&out).read(strings.NewReader("go: cannot find main module\n")); err == nil {
		t.Error("no error for output that is no event")
	}
	if !strings.Contains(out.String(), "cannot find main module") {
		t.Errorf("output: got %q, want what go said", &out)
	}
}
