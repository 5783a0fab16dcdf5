package signature_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/postrider/postrider/signature"
)

// bodies are those that broke other senders: what is signed is bytes, not text.
func bodies() map[string][]byte {
	binary := make([]byte, 0, 1024)
	for sum := sha256.Sum256([]byte("seed")); len(binary) < 1024; sum = sha256.Sum256(sum[:]) {
		binary = append(binary, sum[:]...)
	}
	return map[string][]byte{
		"JSON":           []byte(knownBody),
		"empty":          {},
		"nil":            nil,
		"emoji":          []byte(`{"note":"` + "\U0001F4EE\U0001F469\u200D\U0001F680 ça va — 你好" + `"}`),
		"binary":         binary,
		"invalid UTF-8":  {0x00, 0xff, 0xfe, 0xc3, 0x28, 0x0d, 0x0a, 0x00},
		"256 KiB":        bytes.Repeat([]byte(`{"frame":7}`+"\n"), 256<<10/12+1)[:256<<10],
		"starts with .":  []byte(".{}"),
		"percent signs":  []byte("100%d %s %!v(MISSING)"),
		"looks like two": []byte("1614265330.{}"),
	}
}

func secrets() map[string]string {
	return map[string]string{
		"whsec":              knownSecret,
		"whsec of 64 bytes":  whsec(64),
		"whsec of 200 bytes": whsec(200),
		"raw":                "a-raw-secret-of-thirty-two-bytes",
		"raw and binary":     strings.Repeat("\x00\xff", 16),
	}
}

func official(t *testing.T, secret string) *standardwebhooks.Webhook {
	t.Helper()
	var (
		webhook *standardwebhooks.Webhook
		err     error
	)
	if strings.HasPrefix(secret, "whsec_") {
		webhook, err = standardwebhooks.NewWebhook(secret)
	} else {
		webhook, err = standardwebhooks.NewWebhookRaw([]byte(secret))
	}
	if err != nil {
		t.Fatal(err)
	}
	return webhook
}

func TestTheOfficialLibraryVerifiesOurSignatures(t *testing.T) {
	t.Parallel()
	newest := mustKey(t, whsec(48))
	for secretName, secret := range secrets() {
		key := mustKey(t, secret)
		for bodyName, body := range bodies() {
			t.Run(secretName+"/"+bodyName, func(t *testing.T) {
				t.Parallel()
				at := time.Now()
				for name, keys := range map[string][]signature.Key{
					"one key": {key}, "the newest": {key, newest}, "one of the old": {newest, key, mustKey(t, whsec(30))},
				} {
					header := headers("msg_1", signature.Timestamp(at), signature.Sign("msg_1", at, body, keys...))
					if err := official(t, secret).Verify(body, header); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if err := official(t, secret).Verify(append([]byte("x"), body...), header); !errors.Is(err, standardwebhooks.ErrNoMatchingSignature) {
						t.Errorf("%s, altered body: got %v, want %v", name, err, standardwebhooks.ErrNoMatchingSignature)
					}
				}
			})
		}
	}
}

func TestWeVerifySignaturesOfTheOfficialLibrary(t *testing.T) {
	t.Parallel()
	for secretName, secret := range secrets() {
		v := &signature.Verifier{Keys: []signature.Key{mustKey(t, whsec(48)), mustKey(t, secret)}}
		for bodyName, body := range bodies() {
			t.Run(secretName+"/"+bodyName, func(t *testing.T) {
				t.Parallel()
				at := time.Now()
				theirs, err := official(t, secret).Sign("msg_1", at, body)
				if err != nil {
					t.Fatal(err)
				}
				header := headers("msg_1", signature.Timestamp(at), theirs)
				if err := v.Verify(header, body); err != nil {
					t.Errorf("got %v, want nil", err)
				}
				if err := v.Verify(header, append([]byte("x"), body...)); !errors.Is(err, signature.ErrNoMatch) {
					t.Errorf("altered body: got %v, want %v", err, signature.ErrNoMatch)
				}
			})
		}
	}
}

// TestHeaderNamesSurviveTheWire sets them as a sender does and reads them as a
// receiver's server does.
func TestHeaderNamesSurviveTheWire(t *testing.T) {
	t.Parallel()
	for ours, theirs := range map[string]string{
		signature.HeaderID:        standardwebhooks.HeaderWebhookID,
		signature.HeaderTimestamp: standardwebhooks.HeaderWebhookTimestamp,
		signature.HeaderSignature: standardwebhooks.HeaderWebhookSignature,
	} {
		if ours != theirs {
			t.Errorf("got %q, want %q", ours, theirs)
		}
	}
	header := http.Header{}
	for _, name := range []string{"Webhook-Id", "WEBHOOK-TIMESTAMP", "webhook-Signature"} {
		header.Set(name, map[string]string{"Webhook-Id": knownID, "WEBHOOK-TIMESTAMP": "1614265330", "webhook-Signature": knownSum}[name])
	}
	v := &signature.Verifier{Keys: []signature.Key{mustKey(t, knownSecret)}, Now: func() time.Time { return knownTime }}
	if err := v.Verify(header, json.RawMessage(knownBody)); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}
