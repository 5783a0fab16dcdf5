package controllers

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/postrider/postrider/test/localstack"
)

// TestMain has everything log at its most verbose into one place, which each test searches for its secrets.
func TestMain(m *testing.M) {
	RedirectLogs(slog.NewJSONHandler(&logs, &slog.HandlerOptions{Level: slog.Level(-128)}))
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", "10"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// controller-runtime wraps its watches of metadata in a watch.Filter, whose goroutine is left at a channel nobody reads
	// any more when a manager stops. It holds nothing, and a process stops once.
	localstack.Main(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

// logs is what was logged by all tests of this process, and by the libraries beneath them.
var logs journal

type journal struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return j.text.Write(p)
}

// holds reports whether a text was logged: as it is, escaped as in JSON, in base64, as
// Secrets travel, or in hexadecimal, as Postgres shows bytes.
func (j *journal) holds(secret string) bool {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	return textHolds(j.text.String(), secret)
}

func textHolds(text, secret string) bool {
	quoted := strings.Trim(fmt.Sprintf("%q", secret), `"`)
	for _, form := range []string{secret, quoted, base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret))} {
		if strings.Contains(text, form) {
			return true
		}
	}
	// client-go logs a binary body as a hex dump, sixteen bytes a line.
	const line = 16
	for i := 0; i+line <= len(secret); i++ {
		if strings.Contains(text, "|"+secret[i:i+line]+"|") {
			return true
		}
	}
	return false
}

// testLogger logs to the journal, everything.
func testLogger(t testing.TB) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewJSONHandler(&logs, &slog.HandlerOptions{Level: slog.Level(-128)})).With("test", t.Name())
}

// eventually waits until check is content, and fails the test with its last complaint otherwise.
func eventually(t testing.TB, patience time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// short-lived contexts of helpers.
func patience(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// of are the lines that a test's controllers logged.
func (j *journal) of(test string) string {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	quoted, err := json.Marshal(test)
	if err != nil {
		panic(err)
	}
	var lines []string
	for line := range strings.SplitSeq(j.text.String(), "\n") {
		if strings.Contains(line, `"test":`+string(quoted)) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
