// Command receiver takes webhooks that Postrider sends, and shows the three things a receiver has to do: read the body as
// it came, verify it before believing a word of it, and answer 2xx also for what it has seen before. Set WEBHOOK_SECRET
// to the value of the endpoint's signing Secret; during a rotation, to the new and the old one with a space between.
package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/signature"
)

const maxBody, maxSeen = 1 << 20, 100_000

func main() {
	fmt.Fprintln(os.Stderr, "receiver:", serve(cmp.Or(os.Getenv("LISTEN_ADDRESS"), "127.0.0.1:8080"), os.Getenv("WEBHOOK_SECRET")))
	os.Exit(1)
}

func serve(address, secrets string) error {
	var verifier signature.Verifier
	for secret := range strings.FieldsSeq(secrets) {
		key, err := signature.ParseKey([]byte(secret))
		if err != nil {
			return fmt.Errorf("WEBHOOK_SECRET: %w", err)
		}
		verifier.Keys = append(verifier.Keys, key)
	}
	if len(verifier.Keys) == 0 {
		return fmt.Errorf("WEBHOOK_SECRET: %w", signature.ErrNoKey)
	}
	return (&http.Server{Addr: address, Handler: receive(&verifier, os.Stdout), ReadTimeout: 10 * time.Second}).ListenAndServe()
}

func receive(verifier *signature.Verifier, out io.Writer) http.Handler {
	var mutex sync.Mutex
	seen := map[string]bool{} // a real receiver keeps the ids in the transaction that does its work

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, "cannot read the body", http.StatusBadRequest)
			return
		}
		if err := verifier.Verify(r.Header, body); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		mutex.Lock()
		defer mutex.Unlock()
		if len(seen) == maxSeen {
			clear(seen)
		}
		// The same event may come twice, always with the same id: a second time is no error.
		if id := r.Header.Get(signature.HeaderID); !seen[id] {
			seen[id] = true
			_, _ = fmt.Fprintf(out, "%s %s\n", id, body)
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
