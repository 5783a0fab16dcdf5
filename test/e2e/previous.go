package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

//go:embed previous
var previousFile string

// previousVersion is that of the previous chart, whatever it says itself: between two releases both may say the same.
const previousVersion = "0.0.0-previous"

const (
	presentTag = "e2e"
	valuesFile = "test/e2e/manifests/values.yaml"
)

// edition is a chart with its image, and what the tests say about it.
type edition struct {
	chart, values string
	imageTag      string
	image         string // tarball
	schema        int    // its newest migration
}

// providePresent builds the image of this checkout.
func (w *world) providePresent(ctx context.Context) (edition, error) {
	schema, err := newestMigration(w.top)
	if err != nil {
		return edition{}, err
	}
	image, err := w.productImage(ctx, w.top, filepath.Join(w.top, ".cache/images"), presentTag)
	return edition{
		chart: filepath.Join(w.top, "charts/postrider"), values: filepath.Join(w.top, valuesFile), imageTag: presentTag, image: image, schema: schema,
	}, err
}

// providePrevious takes the previous release out of git and builds its image, once for each revision.
func (w *world) providePrevious(ctx context.Context) (_ edition, err error) {
	revision, err := previousRevision()
	if err != nil {
		return edition{}, err
	}
	folder := filepath.Join(w.top, ".cache/previous", revision[:12])
	if !exists(folder) {
		if err := w.checkOut(ctx, revision, folder); err != nil {
			return edition{}, err
		}
	}
	schema, err := newestMigration(folder)
	if err != nil {
		return edition{}, err
	}
	e := edition{
		chart: filepath.Join(folder, "charts/postrider"), values: filepath.Join(folder, valuesFile), imageTag: "e2e-" + revision[:12], schema: schema,
	}
	if e.image = filepath.Join(folder, imageFile(e.imageTag)); exists(e.image) {
		return e, nil
	}
	unfinished, err := os.MkdirTemp(filepath.Dir(folder), "unfinished-")
	if err != nil {
		return edition{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(unfinished)) }()
	image, err := w.productImage(ctx, folder, unfinished, e.imageTag, "-revision", revision)
	if err != nil {
		return edition{}, err
	}
	return e, os.Rename(image, e.image)
}

func previousRevision() (string, error) {
	for line := range strings.Lines(previousFile) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			if !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(line) {
				return "", fmt.Errorf("test/e2e/previous: %q is no full name of a commit", line)
			}
			return line, nil
		}
	}
	return "", errors.New("test/e2e/previous names no commit")
}

// checkOut writes the files of a revision into a folder that is there whole or not at all.
func (w *world) checkOut(ctx context.Context, revision, folder string) (err error) {
	say("taking the previous release, %s, out of git", revision[:12])
	git := []string{"git", "-c", "safe.directory=*", "-C", w.top} // root's or not, it is the checkout that we are in
	run := func(command ...string) error {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w %s", strings.Join(command, " "), err, bytes.TrimSpace(out))
		}
		return nil
	}
	if err := run(append(git, "cat-file", "-e", revision+"^{commit}")...); err != nil {
		return fmt.Errorf("the upgrade begins at commit %s (test/e2e/previous), which this checkout does not have; a shallow clone gets it with\n"+
			"  git fetch --depth=1 origin %s\n(%w)", revision, revision, err)
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return err
	}
	unfinished, err := os.MkdirTemp(filepath.Dir(folder), "unfinished-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(unfinished)) }()
	archive := filepath.Join(unfinished, "archive.tar")
	tree := filepath.Join(unfinished, "tree")
	if err := errors.Join(
		os.Mkdir(tree, 0o755),
		run(append(git, "archive", "--format=tar", "--output", archive, revision)...),
		run("tar", "--extract", "--file", archive, "--directory", tree),
	); err != nil {
		return err
	}
	if err := setVersion(filepath.Join(tree, "charts/postrider/Chart.yaml"), previousVersion); err != nil {
		return err
	}
	return os.Rename(tree, folder)
}

func setVersion(file, version string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, regexp.MustCompile(`(?m)^(version|appVersion):.*`).ReplaceAll(text, []byte("$1: "+version)), 0o644)
}

// newestMigration of a tree of sources is the schema that its binary needs.
func newestMigration(top string) (int, error) {
	files, err := filepath.Glob(filepath.Join(top, "migrations/*.sql"))
	if err != nil {
		return 0, err
	}
	newest := 0
	for _, file := range files {
		number, _, _ := strings.Cut(filepath.Base(file), "_")
		n, err := strconv.Atoi(number)
		if err != nil {
			return 0, fmt.Errorf("migration %s: %w", file, err)
		}
		newest = max(newest, n)
	}
	if newest == 0 {
		return 0, fmt.Errorf("%s has no migrations", top)
	}
	return newest, nil
}

// productImage builds Postrider's image as `make image` does, for this machine alone, and returns its tarball.
func (w *world) productImage(ctx context.Context, top, out, tag string, more ...string) (string, error) {
	args := []string{"run", ".", "-top", top, "-out", out, "-repository", imageRepository, "-version", tag, "-platforms", "linux/" + runtime.GOARCH}
	cmd := exec.CommandContext(ctx, "go", append(args, more...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(w.top, "test/image"), w.progress, w.progress
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the image %s: %w", tag, err)
	}
	return filepath.Join(out, imageFile(tag)), nil
}

func imageFile(tag string) string {
	return fmt.Sprintf("postrider-%s-linux-%s.tar", tag, runtime.GOARCH)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
