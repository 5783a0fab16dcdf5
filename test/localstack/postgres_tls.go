package localstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Certificate returns the certificate, in PEM, of the authority that issued the server's. The server has one with
// PostgresOptions.TLS.
func (p *Postgres) Certificate() []byte { return p.authority.certPEM }

// offerTLS gives the server a certificate for loopback. Clients may still do without.
func (p *Postgres) offerTLS(settings map[string]string) error {
	var err error
	if p.authority, err = newAuthority(); err != nil {
		return err
	}
	issued, err := p.authority.server()
	if err != nil {
		return err
	}
	var problems []error
	for name, text := range map[string][]byte{"server.crt": issued.cert, "server.key": issued.key} {
		path := filepath.Join(p.data(), name)
		problems = append(problems, os.WriteFile(path, text, 0o600), p.account.own(path))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("give Postgres a certificate: %w", err)
	}
	settings["ssl"] = "on"
	return nil
}
