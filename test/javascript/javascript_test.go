package javascript_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider/signature"
)

const (
	verified = "verified"
	refused  = "refused: No matching signature found" // a WebhookVerificationError of the library

	verifyPatience = time.Minute // it takes a second
)

// request is what verify.mjs reads.
type request struct {
	Secret  string            `json:"secret"` // as the receiver gives it to the library
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
}

func TestTheOfficialJavaScriptLibraryVerifiesOurSignatures(t *testing.T) {
	t.Parallel()
	newest, old, raw := whsec('n'), whsec('o'), "a-raw-secret-of-thirty-two-bytes"
	receivers := map[string]struct {
		signedWith []string
		holds      string
	}{
		"one key":               {[]string{newest}, newest},
		"rotation, the new key": {[]string{newest, old}, newest},
		"rotation, the old key": {[]string{newest, old}, old},
		"raw key in base64":     {[]string{raw}, base64.StdEncoding.EncodeToString([]byte(raw))},
	}
	bodies := map[string]struct {
		body []byte
		want string
	}{
		"emoji":         {[]byte(`{"note":"` + "\U0001F4EE\U0001F469\u200D\U0001F680 ça va — 你好" + `"}`), verified},
		"empty":         {[]byte{}, verified},
		"256 KiB":       {bytes.Repeat([]byte("{\"frame\": 12345}"), 256<<10/16), verified},
		"binary, UTF-8": {[]byte("\uFEFF\x00\x01\r\n\x1b\x7f\u0080\u2028\uFFFD\U0010FFFF\x00"), verified},
		// Version 1.1.1 decodes a body as UTF-8 before it hashes it: nobody's signature over other bytes verifies. When
		// this fails, the library has learnt it; expect verified then.
		"binary, not UTF-8": {[]byte{0x00, 0xff, 0xfe, 0xc3, 0x28, 0x0d, 0x0a, 0x00}, refused},
	}
	var names, wants []string
	var requests []request
	for receiver, r := range receivers {
		for name, b := range bodies {
			headers := sign(t, b.body, r.signedWith)
			names = append(names, receiver+"/"+name, receiver+"/"+name+", altered")
			wants = append(wants, b.want, refused)
			requests = append(requests, request{r.holds, headers, b.body}, request{r.holds, headers, append([]byte("x"), b.body...)})
		}
	}
	answers := verify(t, requests)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if answers[i] != wants[i] {
				t.Errorf("the library answered %q, want %q", answers[i], wants[i])
			}
		})
	}
}

func whsec(b byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32))
}

// sign returns the headers of a request, spelled as Node's server gives them.
func sign(t *testing.T, body []byte, secrets []string) map[string]string {
	t.Helper()
	keys := make([]signature.Key, len(secrets))
	for i, secret := range secrets {
		var err error
		if keys[i], err = signature.ParseKey([]byte(secret)); err != nil {
			t.Fatal(err)
		}
	}
	const id = "0198c0de-0000-7000-8000-000000000001"
	at := time.Now()
	return map[string]string{
		signature.HeaderID:        id,
		signature.HeaderTimestamp: signature.Timestamp(at),
		signature.HeaderSignature: signature.Sign(id, at, body, keys...),
	}
}

// verify has one process of verify.mjs answer the requests, in their order.
func verify(t *testing.T, requests []request) []string {
	t.Helper()
	node, dir := program(t, "node"), library(t)
	script, err := filepath.Abs("verify.mjs")
	if err != nil {
		t.Fatal(err)
	}
	var in, out, complaints bytes.Buffer
	lines := json.NewEncoder(&in)
	for _, r := range requests {
		if err := lines.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), verifyPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, script)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("node verify.mjs: %v\n%s", err, &complaints)
	}
	answers := make([]string, len(requests))
	for i, answer := 0, json.NewDecoder(&out); i < len(answers); i++ {
		if err := answer.Decode(&answers[i]); err != nil {
			t.Fatalf("answer %d of %d: %v", i+1, len(answers), err)
		}
	}
	return answers
}
