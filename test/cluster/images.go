package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/postrider/postrider/test/localstack"
)

// baseImages returns the tarballs that every cluster needs.
func baseImages(ctx context.Context, progress io.Writer) ([]string, error) {
	pause, err := BuildImage(ctx, progress, Image{Name: pauseImage, User: "65535"}, "./test/cluster/pause")
	if err != nil {
		return nil, err
	}
	path, err := coredns.Path(ctx, progress)
	if err != nil {
		return nil, err
	}
	dns, err := StaticImage(Image{Name: dnsImage, User: "65532"}, path)
	if err != nil {
		return nil, err
	}
	return []string{pause, dns}, nil
}

const dnsImage = "postrider.test/coredns:local"

// BuildImage builds a program of this repository into an image that holds nothing else, and returns its tarball.
func BuildImage(ctx context.Context, progress io.Writer, image Image, pkg string) (string, error) {
	top, err := localstack.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(top, ".cache/bin/static", filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Dir, cmd.Env = top, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	say(progress, "building %s (usually seconds)", pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return StaticImage(image, path)
}

// StaticImage puts a static program into an image that holds nothing else, and returns its tarball. Where Entrypoint is
// empty it is the program.
func StaticImage(image Image, program string) (tarball string, err error) {
	name := filepath.Base(program)
	if len(image.Entrypoint) == 0 {
		image.Entrypoint = []string{"/" + name}
	}
	tree, err := os.MkdirTemp("", "postrider-image-")
	if err != nil {
		return "", fmt.Errorf("make an image: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
	if err := errors.Join(os.Chmod(tree, 0o755), copyFile(program, filepath.Join(tree, name))); err != nil {
		return "", fmt.Errorf("make the image %s: %w", image.Name, err)
	}
	tarball, err = imageFile(name)
	if err != nil {
		return "", err
	}
	return tarball, WriteImage(tarball, image, tree)
}

// imageFile returns where the tarball of an image is kept.
func imageFile(name string) (string, error) {
	top, err := localstack.Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(top, ".cache/images")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	return filepath.Join(dir, name+".tar"), nil
}

func copyFile(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
