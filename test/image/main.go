package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// request is what is to be built.
type request struct {
	top        string // of the repository
	out        string
	repository string
	version    string
	revision   string
	created    time.Time
	platforms  []v1.Platform
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	r, err := parse(ctx, args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	var built []platformImage
	for _, p := range r.platforms {
		fmt.Fprintf(os.Stderr, "image: building for %s (usually seconds, two minutes when nothing is compiled yet)\n", p.String())
		one, err := build(ctx, r, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.String(), err)
		}
		built = append(built, one)
	}
	files, err := write(r, built)
	if err != nil {
		return err
	}
	for _, f := range files {
		fmt.Fprintln(os.Stderr, "image: wrote "+f)
	}
	return nil
}

func parse(ctx context.Context, args []string) (request, error) {
	r := request{}
	var platforms string
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&r.top, "top", "../..", "folder of the repository")
	f.StringVar(&r.out, "out", "../../bin/image", "folder to write to")
	f.StringVar(&r.repository, "repository", "ghcr.io/postrider/postrider", "name of the image")
	f.StringVar(&r.version, "version", "dev", "version, and tag of the image")
	f.StringVar(&r.revision, "revision", "", "commit that is built (default: the one that is checked out)")
	f.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "what it is to run on")
	if err := f.Parse(args); err != nil {
		return r, err
	}
	for name := range strings.SplitSeq(platforms, ",") {
		p, err := v1.ParsePlatform(name)
		if err != nil || p.OS != "linux" || p.Architecture == "" {
			return r, fmt.Errorf("-platforms: %q is not linux and an architecture, such as linux/arm64", name)
		}
		r.platforms = append(r.platforms, *p)
	}
	if strings.ContainsAny(r.version, " :/@") || r.version == "" {
		return r, fmt.Errorf("-version: %q is no tag of an image", r.version)
	}
	var err error
	if r.top, err = filepath.Abs(r.top); err != nil {
		return r, err
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return r, err
	}
	return r, r.fromGit(ctx)
}

// fromGit says which commit is built, and when that was made: the time of building would make each image another.
func (r *request) fromGit(ctx context.Context) error {
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return errors.New("SOURCE_DATE_EPOCH is no number of seconds")
		}
		r.created = time.Unix(seconds, 0).UTC()
	}
	command := exec.CommandContext(ctx, "git", "-C", r.top, "show", "--no-patch", "--format=%H %ct", "HEAD")
	text, err := command.Output()
	commit, seconds, found := strings.Cut(strings.TrimSpace(string(text)), " ")
	if err != nil || !found {
		if r.created.IsZero() {
			r.created = time.Unix(0, 0).UTC() // an archive of the sources, without git
		}
		return nil
	}
	if r.revision == "" {
		r.revision = commit
	}
	if r.created.IsZero() {
		at, err := strconv.ParseInt(seconds, 10, 64)
		if err != nil {
			return fmt.Errorf("the time of the commit: %w", err)
		}
		r.created = time.Unix(at, 0).UTC()
	}
	return nil
}
