package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/installer"
)

// selfTesting configures the self-test.
type selfTesting struct {
	test   installer.SelfTest
	caFile string
}

func (s *selfTesting) flags(f *pflag.FlagSet) {
	f.StringVar(&s.test.IngestURL, "ingest-url", "", "where events are posted, without a path (required)")
	f.StringVar(&s.caFile, "ingest-ca-file", "", "certificates to trust ingest's by, PEM (default: those of the system)")
	f.StringVar(&s.test.TokenFile, "token-file", "", "file with a producer's token (required)")
	f.StringVar(&s.test.KeyFile, "signing-key-file", "", "file with the endpoint's signing key (required)")
	f.StringVar(&s.test.Address, "address", ":8080", "where the event is received, host:port")
	f.StringVar(&s.test.EventType, "event-type", "postrider.selftest", "type of the event that is posted")
	f.DurationVar(&s.test.Timeout, "timeout", 2*time.Minute, "how long to go on trying")
}

func (s *selfTesting) validate() error {
	var problems []error
	for _, required := range []struct{ flag, value string }{
		{"ingest-url", s.test.IngestURL}, {"token-file", s.test.TokenFile}, {"signing-key-file", s.test.KeyFile},
	} {
		if required.value == "" {
			problems = append(problems, fmt.Errorf("--%s: is missing", required.flag))
		}
	}
	if s.test.Timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout: %s is not above 0", s.test.Timeout))
	}
	return errors.Join(problems...)
}

func (s *selfTesting) client() (*http.Client, error) {
	if s.caFile == "" {
		return http.DefaultClient, nil
	}
	text, err := os.ReadFile(s.caFile)
	if err != nil {
		return nil, fmt.Errorf("--ingest-ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("--ingest-ca-file: has no certificate in PEM")
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}, nil
}

func selfTestCommand() *cobra.Command {
	var s selfTesting
	var log logging
	return configure(&cobra.Command{
		Use:   "selftest",
		Short: "Post an event, receive it, and end well once it is recorded as delivered",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := s.client()
			if err != nil {
				return err
			}
			s.test.Client, s.test.Logger = client, log.logger("selftest")
			return s.test.Run(c.Context())
		},
	}, &s, &log)
}
