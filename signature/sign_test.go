package signature_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/signature"
)

const (
	knownID   = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	knownBody = `{"test": 2432232314}`
	knownSum  = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var knownTime = time.Unix(1614265330, 0)

func TestSignGivesTheKnownAnswer(t *testing.T) {
	t.Parallel()
	if got := signature.Sign(knownID, knownTime, []byte(knownBody), mustKey(t, knownSecret)); got != knownSum {
		t.Errorf("got %q, want %q", got, knownSum)
	}
	if got, want := signature.Timestamp(knownTime.Add(999*time.Millisecond)), "1614265330"; got != want {
		t.Errorf("timestamp: got %q, want %q", got, want)
	}
}

func TestSignGivesOneSignatureForEveryKeyInOrder(t *testing.T) {
	t.Parallel()
	secrets := []string{whsec(32), "a-raw-secret-of-thirty-two-bytes", knownSecret}
	keys := make([]signature.Key, 0, len(secrets))
	want := make([]string, 0, len(secrets))
	for _, secret := range secrets {
		raw := []byte(secret)
		if encoded, ok := strings.CutPrefix(secret, "whsec_"); ok {
			raw, _ = base64.StdEncoding.DecodeString(encoded)
		}
		mac := hmac.New(sha256.New, raw)
		_, _ = fmt.Fprintf(mac, "%s.%d.%s", knownID, knownTime.Unix(), knownBody)
		want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		keys = append(keys, mustKey(t, secret))
	}
	// Twice, since the second signature of a key comes from prepared state.
	for range 2 {
		if got := signature.Sign(knownID, knownTime, []byte(knownBody), keys...); got != strings.Join(want, " ") {
			t.Fatalf("got  %q\nwant %q", got, strings.Join(want, " "))
		}
	}
}

func TestSignPassesOverTheZeroKey(t *testing.T) {
	t.Parallel()
	key := mustKey(t, knownSecret)
	if got := signature.Sign(knownID, knownTime, []byte(knownBody), signature.Key{}, key, signature.Key{}); got != knownSum {
		t.Errorf("got %q, want %q", got, knownSum)
	}
	if got := signature.Sign(knownID, knownTime, []byte(knownBody), signature.Key{}); got != "" {
		t.Errorf("no key: got %q, want nothing", got)
	}
	if got := signature.Sign(knownID, knownTime, []byte(knownBody)); got != "" {
		t.Errorf("no key: got %q, want nothing", got)
	}
}

func TestOneKeySignsInManyGoroutines(t *testing.T) {
	t.Parallel()
	key := mustKey(t, knownSecret)
	verifier := &signature.Verifier{Keys: []signature.Key{key}, Now: func() time.Time { return knownTime }}
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 200 {
				id := fmt.Sprintf("msg_%d_%d", worker, i)
				body := bytes.Repeat([]byte{byte(worker)}, i)
				header := headers(id, signature.Timestamp(knownTime), signature.Sign(id, knownTime, body, key))
				if err := verifier.Verify(header, body); err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
			}
		})
	}
	group.Wait()
}

func TestSignAllocatesForItsResultOnly(t *testing.T) {
	// Not parallel: AllocsPerRun counts those of the whole program.
	keys := []signature.Key{mustKey(t, knownSecret), mustKey(t, whsec(32))}
	body := bytes.Repeat([]byte("x"), 4096)
	signature.Sign(knownID, knownTime, body, keys...)
	// The timestamp, the header being built, the string. Under the race detector
	// a pool drops some of what it is given, so the bound leaves room for that.
	if got := testing.AllocsPerRun(200, func() { signature.Sign(knownID, knownTime, body, keys...) }); got > 3+8*raceFactor {
		t.Errorf("got %v allocations for two signatures, want at most 3", got)
	}
}

func BenchmarkSign(b *testing.B) {
	for _, size := range []int{0, 1 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			key, body := mustKey(b, knownSecret), make([]byte, size)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				signature.Sign(knownID, knownTime, body, key)
			}
		})
	}
}
