package dispatcher

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/signature"
)

// D12: clocks an hour apart. Behaviour and signatures follow the database's clock, however far this machine's is off.
func TestClocksAnHourApartBehaveTheSame(t *testing.T) {
	t.Parallel()
	key, err := signature.ParseKey([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	old, err := signature.ParseKey([]byte("an older key, of no fewer than 24 bytes"))
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []time.Duration{-time.Hour, 0, time.Hour} {
		t.Run(offset.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				m.offset = offset
				endpoint := testEndpoint(t, 1)
				endpoint.Spec.Schedule = []time.Duration{20 * time.Minute}
				endpoint.Spec.MaxAttempts = 3
				// The older key's window ends between the second and the third attempt.
				endpoint.Keys = append(endpoint.Keys, sealKey(t, endpoint.PublicID, "an older key, of no fewer than 24 bytes", m.now().Add(28*time.Minute)))
				m.add(m.apply(endpoint))
				var verified, byOld []error
				d := startWithoutChores(t, Config{Senders: 1}, testDependencies(t, m), outside{transport: receiver(func(r *http.Request) (*http.Response, error) {
					v := signature.Verifier{Keys: []signature.Key{key}, Tolerance: 2 * time.Second, Now: m.now}
					verified = append(verified, v.Verify(r.Header, []byte(`{"n":1}`)))
					v.Keys = []signature.Key{old}
					byOld = append(byOld, v.Verify(r.Header, []byte(`{"n":1}`)))
					return answers(503)
				})})
				for m.pending() > 0 {
					time.Sleep(time.Minute)
				}
				d.end()
				if len(verified) != 3 || slices.ContainsFunc(verified, func(err error) bool { return err != nil }) {
					t.Errorf("attempts verified by the database's clock: got %v, want 3 without error", verified)
				}
				if len(byOld) != 3 || byOld[0] != nil || byOld[1] != nil || byOld[2] == nil {
					t.Errorf("attempts verified with the older key: got %v, want the first two", byOld)
				}
				if dead := m.buried(); len(dead) != 1 || dead[0].DeadReason != string(AttemptsExhausted) {
					t.Errorf("dead letters: got %+v, want one, %s", dead, AttemptsExhausted)
				}
			})
		})
	}
}

// What reads the wall clock cannot come in unnoticed: time.Now is called in clock.go alone, where it becomes an instant.
func TestOnlyTheMonotonicClockIsRead(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("list the package's files: %v, %v", files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "clock.go" {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := selector.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains([]string{"Now", "Since", "Until"}, selector.Sel.Name) {
				t.Errorf("%s: time.%s; use now, since or until of clock.go", set.Position(n.Pos()), selector.Sel.Name)
			}
			return true
		})
	}
}

func TestDatabaseTimeGoesOnFromItsReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
		d := databaseTime{at: at, read: now()}
		time.Sleep(90 * time.Second)
		if got, want := d.now(), at.Add(90*time.Second); !got.Equal(want) {
			t.Errorf("after 90 s: got %v, want %v", got, want)
		}
		if got := signature.Timestamp(d.now()); got != strconv.FormatInt(at.Unix()+90, 10) {
			t.Errorf("timestamp after 90 s: got %s, want %d", got, at.Unix()+90)
		}
	})
}
