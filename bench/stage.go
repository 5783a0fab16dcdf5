package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/bench/sink"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/test/localstack"
)

// stage is what all units share: a Postgres server, the sink, the product's binary and a keyring.
type stage struct {
	progress io.Writer
	dir      string // of logs and the keyring
	program  string // the product
	self     string // this binary
	results  string // folder that profiles go to
	profile  bool

	postgres   *localstack.Postgres
	postmaster int
	version    string // of Postgres
	sinkChild  *child
	sink       *sink.Client
	target     string // host:port of the sink
	ring       *keyring.Keyring
	key        signature.Key
	secret     []byte
	templates  map[string]template
	databases  int
}

// settings of the server: those that a machine of this size would have. Both opponents run on it. Checkpoints are asked
// for between the units, so that none falls into one by chance. What the log needs stays with it: see fillLog.
var settings = map[string]string{
	"synchronous_commit": "on",
	"shared_buffers":     "1GB",
	"min_wal_size":       "4GB",
	"max_wal_size":       "8GB",
	"checkpoint_timeout": "30min",
}

func newStage(ctx context.Context, progress io.Writer, results string, profile bool) (*stage, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	s := &stage{progress: progress, dir: dir, self: self, results: results, profile: profile, templates: map[string]template{}}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *stage) open(ctx context.Context) (err error) {
	if s.program, err = build(ctx, s.progress); err != nil {
		return err
	}
	if err := s.makeKeys(); err != nil {
		return err
	}
	if s.sinkChild, err = launch(s.dir, "sink", s.self, []string{"sink"}, nil); err != nil {
		return err
	}
	var at sink.Addresses
	if err := s.sinkChild.line(ctx, func(line []byte) bool { return json.Unmarshal(line, &at) == nil && at.Control != "" }); err != nil {
		return err
	}
	s.sink, s.target = sink.NewClient(at.Control), at.Webhooks
	served := maps.Clone(settings)
	if s.profile {
		maps.Copy(served, preload)
	}
	s.postgres, err = localstack.NewPostgres(ctx, localstack.PostgresOptions{Durable: true, Settings: served, Progress: s.progress})
	if err != nil {
		return err
	}
	return s.meetPostgres(ctx)
}

// fillLog writes so much to the log of a server that is new. One that has been in use for a while writes over the files of its
// log that it no longer needs; a new one makes each of them, 16 MiB of zeroes that everybody waits for until they are on disk.
func (s *stage) fillLog(ctx context.Context, mib int) error {
	return s.onServer(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT count(pg_logical_emit_message(false, 'fill', repeat('x', 1048576))) FROM generate_series(1, $1::int)`, mib)
		if err == nil {
			_, err = conn.Exec(ctx, `CHECKPOINT`)
		}
		if err != nil {
			return fmt.Errorf("fill the server's log: %w", err)
		}
		return nil
	})
}

// build makes the product's binary of this checkout.
func build(ctx context.Context, progress io.Writer) (string, error) {
	top, err := localstack.Root()
	if err != nil {
		return "", err
	}
	say(progress, "building postrider (a minute or two when nothing is cached)")
	file := filepath.Join(top, ".cache/bin/bench-postrider")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", file, "./cmd/postrider")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build postrider: %w\n%s", err, out)
	}
	return file, nil
}

func (s *stage) makeKeys() error {
	line, err := keyring.Generate("bench")
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.keyringFile(), []byte(line), 0o600); err != nil {
		return fmt.Errorf("write the keyring: %w", err)
	}
	if s.ring, err = keyring.Parse([]byte(line)); err != nil {
		return err
	}
	s.secret = []byte(benchSecret)
	s.key, err = signature.ParseKey(s.secret)
	return err
}

// benchSecret signs what only the sink reads. It is the one of Standard Webhooks' examples.
const benchSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func (s *stage) keyringFile() string { return filepath.Join(s.dir, "keyring") }

// close ends everything that was started.
func (s *stage) close() error {
	s.sinkChild.stop()
	http.DefaultClient.CloseIdleConnections()
	return errors.Join(s.postgres.Close(), os.RemoveAll(s.dir))
}

func (s *stage) url(kind string, number int) string {
	return fmt.Sprintf("http://%s/%s/%d", s.target, kind, number)
}

func say(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, "bench: "+strings.TrimSuffix(format, "\n")+"\n", args...)
}
