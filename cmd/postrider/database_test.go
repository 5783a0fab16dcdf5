package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
)

func TestAPasswordFileWinsOverTheURL(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://app@db:5433/events", "postgres://app:old@db:5433/events?sslmode=disable", "postgresql://app:old@db:5433/events?",
		"host=db port=5433 user=app dbname=events", "host=db port=5433 user=app dbname=events password=old",
	} {
		for _, password := range []string{"new", `q'uo\te`, "a&b=c?d#e%20 f+g", "ü€"} {
			c, err := pgx.ParseConfig(withPassword(dsn, password))
			if err != nil {
				t.Errorf("%s with %q: %v", dsn, password, err)
				continue
			}
			if c.Password != password || c.User != "app" || c.Host != "db" || c.Port != 5433 || c.Database != "events" {
				t.Errorf("%s with %q: got password %q of %q at %s:%d/%s", dsn, password, c.Password, c.User, c.Host, c.Port, c.Database)
			}
		}
	}
}

func TestFilesOfTheDatabaseAreReadAnew(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	d := database{urlFile: file("url", "host=a\n"), directURLFile: file("direct", "host=b\r\n"), maxConns: 2}
	if err := d.validate(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []store.Access{{DSN: "host=a", DirectDSN: "host=b"}, {DSN: "host=c", DirectDSN: "host=d"}} {
		file("url", want.DSN)
		file("direct", want.DirectDSN)
		if got, err := d.access(); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	d.passwordFile = file("password", "secret\n")
	if got, err := d.access(); err != nil || got.DSN != "host=c password='secret'" || got.DirectDSN != "host=d password='secret'" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestWhatIsWrongWithTheDatabasesFilesIsNamedAndNotShown(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, text := range map[string]string{"empty": "\n", "broken": "postgres://u:hunter2@host:port/x"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		database
		says string
	}{
		"nothing given":   {database{}, "--database-url: is missing"},
		"both given":      {database{url: "host=a", urlFile: "x"}, "both are given"},
		"both direct":     {database{url: "host=a", directURL: "host=a", directURLFile: "x"}, "both are given"},
		"no file":         {database{urlFile: filepath.Join(folder, "absent")}, "--database-url-file: open"},
		"an empty file":   {database{url: "host=a", passwordFile: filepath.Join(folder, "empty")}, "--database-password-file: "},
		"a broken string": {database{urlFile: filepath.Join(folder, "broken")}, "database DSN: "},
	} {
		c.maxConns = 2
		err := c.validate()
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want it to say %q", name, err, c.says)
		}
	}
}
