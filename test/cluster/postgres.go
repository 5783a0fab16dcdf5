package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// postgresPackages are unpacked into the image with all that they depend on.
var postgresPackages = []string{"postgresql", "busybox-static"}

//go:embed entrypoint.sh
var entrypoint []byte

// The name of PostgresImage.
const (
	PostgresRepository = "postrider.test/postgres"
	PostgresTag        = "local"
)

const aptPatience = 10 * time.Minute

// PostgresImage makes an image of Debian's Postgres and returns its tarball. It behaves as the official image does, as far
// as charts rely on that: POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB, PGDATA, user 999, a read-only root. It is made once per
// checkout and version of Debian's package.
func PostgresImage(ctx context.Context, progress io.Writer) (tarball string, err error) {
	if progress == nil {
		progress = os.Stderr
	}
	ctx, cancel := context.WithTimeout(ctx, aptPatience)
	defer cancel()
	version, err := postgresVersion(ctx)
	if err != nil {
		return "", err
	}
	if tarball, err = imageFile("postgres-" + version); err != nil {
		return "", err
	}
	if info, err := os.Stat(tarball); err == nil && info.Size() > 0 {
		return tarball, nil
	}
	begun := time.Now()
	say(progress, "making an image of Postgres from Debian's packages, once for this checkout (usually a minute)")
	tree, err := os.MkdirTemp("", "postrider-postgres-")
	if err != nil {
		return "", fmt.Errorf("make the image of Postgres: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
	if err := unpackPostgres(ctx, tree); err != nil {
		return "", fmt.Errorf("make the image of Postgres: %w", err)
	}
	programs, err := filepath.Glob(filepath.Join(tree, "root/usr/lib/postgresql/*/bin"))
	if err != nil || len(programs) != 1 {
		return "", fmt.Errorf("make the image of Postgres: Debian's packages have its programs in %v", programs)
	}
	path := strings.TrimPrefix(programs[0], filepath.Join(tree, "root"))
	image := Image{
		Name: PostgresRepository + ":" + PostgresTag, User: "999", Entrypoint: []string{"/usr/local/bin/docker-entrypoint.sh"},
		Env: []string{"PATH=" + path + ":/usr/local/bin:/usr/bin:/bin", "PGDATA=/var/lib/postgresql/data", "LANG=C.UTF-8"},
	}
	if err := WriteImage(tarball, image, filepath.Join(tree, "root")); err != nil {
		return "", err
	}
	say(progress, "made the image of Postgres in %s", time.Since(begun).Round(time.Second))
	return tarball, nil
}

// postgresVersion is of Debian's package, with what is done here.
func postgresVersion(ctx context.Context) (string, error) {
	look := func() (string, error) {
		out, err := exec.CommandContext(ctx, "apt-cache", "show", "--no-all-versions", "postgresql").Output()
		if err != nil {
			return "", fmt.Errorf("ask apt-cache for Debian's Postgres: %w", err)
		}
		for line := range strings.Lines(string(out)) {
			if version, ok := strings.CutPrefix(strings.TrimSpace(line), "Version: "); ok {
				return strings.ReplaceAll(version, "+", "-"), nil
			}
		}
		return "", errors.New("apt-cache shows no package postgresql")
	}
	version, err := look()
	if err != nil { // a fresh machine may have no package lists
		if out, updateErr := exec.CommandContext(ctx, "apt-get", "update").CombinedOutput(); updateErr != nil {
			return "", errors.Join(err, fmt.Errorf("apt-get update: %w\n%s", updateErr, out))
		}
		version, err = look()
	}
	return version, err
}

// unpackPostgres makes the tree of the image in <tree>/root.
func unpackPostgres(ctx context.Context, tree string) error {
	root, archives := filepath.Join(tree, "root"), filepath.Join(tree, "archives")
	if err := errors.Join(os.MkdirAll(filepath.Join(archives, "partial"), 0o755), os.MkdirAll(root, 0o755)); err != nil {
		return err
	}
	// As for a machine that has nothing installed.
	args := append([]string{
		"-o", "Dir::State::status=/dev/null", "-o", "Dir::Cache::archives=" + archives, "-o", "APT::Install-Recommends=false",
		"-o", "APT::Sandbox::User=root", "install", "-y", "--download-only",
	}, postgresPackages...)
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download Debian's packages: %w\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil || len(found) == 0 {
		return fmt.Errorf("apt-get downloaded nothing: %w", err)
	}
	for _, archive := range found {
		name, _, _ := strings.Cut(filepath.Base(archive), "_")
		if unneeded(name) {
			continue
		}
		if out, err := exec.CommandContext(ctx, "dpkg", "-x", archive, root).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", filepath.Base(archive), err, out)
		}
	}
	return furnish(root)
}

// unneeded packages serve to install and administer Postgres on a machine.
func unneeded(name string) bool {
	for _, prefix := range []string{"perl", "libperl", "postgresql-common", "postgresql-client-common", "debconf", "dpkg", "adduser", "passwd", "ucf", "systemd", "login", "tar", "coreutils"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// furnish drops what a server does not need and adds what the packages' scripts would have made.
func furnish(root string) error {
	for _, path := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/perl", "usr/share/perl5", "usr/share/bash-completion"} {
		if err := os.RemoveAll(filepath.Join(root, path)); err != nil {
			return err
		}
	}
	// Who runs the server must have a name, whichever number a chart or a cluster chooses.
	const users = "root:x:0:0:root:/:/bin/sh\npostgres:x:999:999::/var/lib/postgresql:/bin/sh\npostgres70:x:70:70::/var/lib/postgresql:/bin/sh\n"
	const groups = "root:x:0:\npostgres:x:999:\npostgres70:x:70:\n"
	for _, dir := range []string{"etc", "tmp", "usr/local/bin", "var/run/postgresql", "var/lib/postgresql/data"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	errs := []error{
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(users), 0o644),
		os.WriteFile(filepath.Join(root, "etc/group"), []byte(groups), 0o644),
		os.WriteFile(filepath.Join(root, "usr/local/bin/docker-entrypoint.sh"), entrypoint, 0o755),
		os.Chmod(filepath.Join(root, "usr/local/bin/docker-entrypoint.sh"), 0o755),
		os.Chmod(filepath.Join(root, "tmp"), 0o1777),
	}
	for _, dir := range []string{"var/run/postgresql", "var/lib/postgresql/data"} {
		errs = append(errs, os.Chmod(filepath.Join(root, dir), 0o1777))
	}
	for _, tool := range []string{"sh", "cat", "chmod", "id", "ls", "mkdir", "rm", "sleep", "kill"} {
		link := filepath.Join(root, "bin", tool)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		errs = append(errs, os.Symlink("busybox", link))
	}
	return errors.Join(errs...)
}
