package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	oldestPostgres = 14
	aptPatience    = 10 * time.Minute
)

// findPostgres returns the folder of the newest server programs on this machine, after installing them if there are
// none and we may.
func findPostgres(ctx context.Context, progress io.Writer) (string, error) {
	if dir := newestPostgres(ctx); dir != "" {
		return dir, nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return "", fmt.Errorf("no PostgreSQL server (version %d or later) was found in PATH or /usr/lib/postgresql/*/bin. "+
			"Install it (Debian, Ubuntu: sudo apt-get install postgresql; Fedora: sudo dnf install postgresql-server; "+
			"Alpine: sudo apk add postgresql) or set %s to the URL of a superuser of a server for tests", oldestPostgres, EnvDatabaseURL)
	}
	if err := aptInstall(ctx, apt, progress, "postgresql"); err != nil {
		return "", err
	}
	if dir := newestPostgres(ctx); dir != "" {
		return dir, nil
	}
	return "", errors.New("apt-get installed the package postgresql, but /usr/lib/postgresql/*/bin still has no initdb and postgres")
}

func newestPostgres(ctx context.Context) string {
	candidates := []string{}
	if path, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, filepath.Dir(target))
		}
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*"} {
		found, _ := filepath.Glob(pattern) // only a bad pattern fails
		candidates = append(candidates, found...)
	}
	newest, best := "", oldestPostgres-1
	for _, dir := range candidates {
		if version := postgresVersion(ctx, dir); version > best {
			newest, best = dir, version
		}
	}
	return newest
}

var versionNumber = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// postgresVersion returns the major version of the server in dir, 0 if there is no whole one.
func postgresVersion(ctx context.Context, dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	match := versionNumber.FindSubmatch(out)
	if match == nil {
		return 0
	}
	version, err := strconv.Atoi(string(match[1]))
	if err != nil {
		return 0
	}
	return version
}

// InstallPackages installs packages of Debian or Ubuntu that tests need. The error says what to install where we may not.
func InstallPackages(ctx context.Context, progress io.Writer, packages ...string) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("%v are needed and not installed; on Debian and Ubuntu: sudo apt-get install %s", packages, strings.Join(packages, " "))
	}
	return aptInstall(ctx, apt, progress, packages...)
}

func aptInstall(ctx context.Context, apt string, progress io.Writer, packages ...string) error {
	ctx, cancel := context.WithTimeout(ctx, aptPatience)
	defer cancel()
	say(progress, "installing %v with apt-get, once for this machine (usually under a minute)", packages)
	install := append([]string{"install", "-y", "--no-install-recommends"}, packages...)
	if err := runApt(ctx, apt, install...); err == nil {
		return nil
	}
	// A fresh machine may have no package lists, or stale ones.
	if err := runApt(ctx, apt, "update"); err != nil {
		return err
	}
	return runApt(ctx, apt, install...)
}

func runApt(ctx context.Context, apt string, args ...string) error {
	cmd := exec.CommandContext(ctx, apt, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %v: %w\n%s", args, err, out)
	}
	return nil
}

// account is the user that Postgres runs as. Nil means the current one.
type account struct {
	uid, gid uint32
	name     string
}

// unprivileged returns whom to run Postgres as: ourselves, or the first of two usual accounts when we are root, whom
// Postgres refuses.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil // the current user
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil || uid == 0 {
			continue
		}
		return &account{uid: uint32(uid), gid: uint32(gid), name: name}, nil
	}
	return nil, errors.New("Postgres does not run as root and this machine has neither a user postgres nor nobody; run as an unprivileged user")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(path, int(a.uid), int(a.gid)); err != nil {
		return fmt.Errorf("hand %s to user %s: %w", path, a.name, err)
	}
	return nil
}

// environment is all that the server sees of ours: PG* variables of the user would steer it elsewhere.
func (a *account) environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}
