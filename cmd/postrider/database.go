package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/store"
)

// startPatience bounds each question to the database at the start.
const startPatience = 10 * time.Second

// database says where Postgres is. What is in files is read anew before each connection: a rotated password needs no restart.
type database struct {
	url           string
	urlFile       string
	directURL     string
	directURLFile string
	passwordFile  string
	maxConns      int32
}

func (d *database) flags(f *pflag.FlagSet) {
	f.StringVar(&d.url, "database-url", "", "Postgres, postgres://user:password@host:port/name; with a password better given as --database-url-file, which may change")
	f.StringVar(&d.urlFile, "database-url-file", "", "file with the same, read anew for each connection")
	f.StringVar(&d.directURL, "database-direct-url", "", "the same past a connection pooler, for listening and locks (default: --database-url)")
	f.StringVar(&d.directURLFile, "database-direct-url-file", "", "file with it, read anew for each connection")
	f.StringVar(&d.passwordFile, "database-password-file", "", "file with the password, read anew for each connection; wins over that of the URLs")
	f.Int32Var(&d.maxConns, "database-max-conns", 10, "connections at most")
}

func (d *database) validate() error {
	var problems []error
	switch {
	case d.url == "" && d.urlFile == "":
		problems = append(problems, fmt.Errorf("--database-url: is missing; give it as %s, or give --database-url-file", variable("database-url")))
	case d.url != "" && d.urlFile != "":
		problems = append(problems, errors.New("--database-url, --database-url-file: both are given; leave one out"))
	case d.directURL != "" && d.directURLFile != "":
		problems = append(problems, errors.New("--database-direct-url, --database-direct-url-file: both are given; leave one out"))
	default:
		access, err := d.access()
		if err == nil {
			err = access.Validate()
		}
		problems = append(problems, err)
	}
	if d.maxConns < 2 || d.maxConns > 1000 {
		problems = append(problems, fmt.Errorf("--database-max-conns: %d is not from 2 to 1000", d.maxConns))
	}
	return errors.Join(problems...)
}

// access reads the files, if there are any.
func (d *database) access() (store.Access, error) {
	var a store.Access
	var problems [2]error
	a.DSN, problems[0] = given(d.url, "database-url-file", d.urlFile)
	a.DirectDSN, problems[1] = given(d.directURL, "database-direct-url-file", d.directURLFile)
	password, err := given("", "database-password-file", d.passwordFile)
	if err := errors.Join(problems[0], problems[1], err); err != nil {
		return store.Access{}, err
	}
	if password != "" {
		a.DSN = withPassword(a.DSN, password)
		if a.DirectDSN != "" {
			a.DirectDSN = withPassword(a.DirectDSN, password)
		}
	}
	return a, nil
}

// direct is the connection string past a pooler.
func (d *database) direct() (string, error) {
	a, err := d.access()
	if err != nil {
		return "", err
	}
	return cmp.Or(a.DirectDSN, a.DSN), nil
}

// given is a value, or what is in a file without the end of its line.
func given(value, flag, file string) (string, error) {
	if file == "" {
		return value, nil
	}
	text, err := os.ReadFile(file) //nolint:gosec // which file is for whoever starts the process to say
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	value = strings.TrimRight(string(text), "\r\n")
	if value == "" {
		return "", fmt.Errorf("--%s: %s is empty", flag, file)
	}
	return value, nil
}

// withPassword puts a password into a connection string of either form. Of two mentions the last one counts.
func withPassword(dsn, password string) string {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " password='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password) + "'"
	}
	before, query, _ := strings.Cut(dsn, "?")
	if query != "" {
		query += "&"
	}
	return before + "?" + query + "password=" + strings.ReplaceAll(url.QueryEscape(password), "+", "%20")
}

// open waits for the schema and opens the store.
func (d *database) open(ctx context.Context, log *slog.Logger, schema *schemaWatch, part string) (*store.Store, error) {
	if err := schema.wait(ctx, log, d); err != nil {
		return nil, err
	}
	s, err := store.Open(ctx, store.Options{
		Reread: d.access, Refused: refusals(log), MaxConns: d.maxConns, Application: "postrider-" + part,
	})
	if err != nil {
		return nil, err
	}
	d.fit(ctx, log, s)
	return s, nil
}

// fit prepares the role for sessions that a pooler keeps. Without it everything is slow, and works: no reason not to start.
func (d *database) fit(ctx context.Context, log *slog.Logger, s *store.Store) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	switch stale, err := s.FitRole(ctx); {
	case err != nil:
		log.Warn("the settings of the database's role could not be made; claims may be slow: see docs/operations.md", "reason", err.Error())
	case stale:
		log.Warn("the connection pooler still has sessions without the role's new settings; let it close them (RECONNECT), or claims may be slow")
	}
}

// refusals says why the database lets nobody in: once a minute, since every new connection asks.
func refusals(log *slog.Logger) func(reason string) {
	const pause = time.Minute
	var mutex sync.Mutex
	var last time.Time
	return func(reason string) {
		mutex.Lock()
		defer mutex.Unlock()
		if now := time.Now(); now.Sub(last) >= pause {
			last = now
			log.Warn("the database refuses connections; give the right credentials in the files or Secrets that name them", "reason", reason)
		}
	}
}

// owned opens the store of a part that does not talk to the cluster about it: it takes the installation's word.
func (d *database) owned(ctx context.Context, log *slog.Logger, schema *schemaWatch, part string, in installation) (*store.Store, error) {
	s, err := d.open(ctx, log, schema, part)
	if err != nil {
		return nil, err
	}
	if err := insist(ctx, log, store.IsUnavailable, func(ctx context.Context) error { return own(ctx, s, in) }); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// own asks once. It has a deadline: a connection that leads nowhere must not hang the start.
func own(ctx context.Context, s *store.Store, in installation) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return s.Own(ctx, store.Installation{Namespace: in.namespace, Release: in.release}, false)
}

// installation names this release of Postrider: one owns a database.
type installation struct {
	namespace string
	release   string
}

func (i *installation) flags(f *pflag.FlagSet) {
	f.StringVar(&i.namespace, "namespace", "", "namespace of this release (required)")
	f.StringVar(&i.release, "release", "postrider", "name of this release")
}

func (i *installation) validate() error {
	var problems []error
	if i.namespace == "" {
		problems = append(problems, fmt.Errorf("--namespace: is missing; give the namespace of this release"))
	}
	if i.release == "" {
		problems = append(problems, fmt.Errorf("--release: is empty; give the name of this release"))
	}
	return errors.Join(problems...)
}
