package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/postrider/postrider/test/localstack"
)

// stayUp starts the stack and the sample receiver, writes .cache/up.env and waits to be interrupted.
func stayUp(ctx context.Context) (err error) {
	s, err := newStage(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	folder, err := sampleFolder()
	if err != nil {
		return err
	}
	top := filepath.Dir(filepath.Dir(folder))
	if _, err := s.applySamples(ctx, s.receiver.url); err != nil { // the Secrets must be there to be read
		return err
	}
	receiver, err := s.sampleReceiver(ctx)
	if err != nil {
		return err
	}
	if _, err := s.applySamples(ctx, receiver.URL); err != nil {
		return err
	}
	if s.token, err = localstack.Token(ctx, s.kube.Config(), samples, "producer", "postrider"); err != nil {
		return err
	}
	env := filepath.Join(top, ".cache/up.env")
	text := fmt.Sprintf("export KUBECONFIG=%s\nexport POSTRIDER_URL=%s\nexport POSTRIDER_TOKEN=%s\nexport POSTRIDER_DATABASE_URL='%s'\nexport POSTRIDER_RECEIVER_URL=%s\n",
		s.kube.Kubeconfig(), s.ingest.URL, s.token, s.database, receiver.URL)
	if err := os.WriteFile(env, []byte(text), 0o600); err != nil {
		return err
	}
	defer func() { _ = os.Remove(env) }()
	fmt.Printf(`
Postrider is up, with the samples applied. In another terminal:

  . .cache/up.env
  curl -i "$POSTRIDER_URL/api/v1/events" -H "Authorization: Bearer $POSTRIDER_TOKEN" \
    -H 'Content-Type: application/json' -d '{"type": "invoice.paid", "payload": {"number": 1}}'
  kubectl -n %s get webhookendpoints
  tail -f %s   # what the receiver gets

Ctrl-C ends it.
`, samples, receiver.Log())
	<-ctx.Done()
	fmt.Println("\nstopping")
	return nil
}

// sampleReceiver runs examples/receiver with the samples' keys.
func (s *stage) sampleReceiver(ctx context.Context) (*localstack.Part, error) {
	var secrets []string
	for _, name := range []string{ledgerSecret, "meridian-signing", "pixel-forge-signing"} {
		value, err := s.secret(ctx, name)
		if err != nil {
			return nil, err
		}
		secrets = append(secrets, value)
	}
	return s.postrider.StartProgram(ctx, "./examples/receiver", func(address string) []string {
		return []string{"WEBHOOK_SECRET=" + strings.Join(secrets, " "), "LISTEN_ADDRESS=" + address}
	})
}
