package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is nobody in particular, and not root. It is a number, so that Kubernetes can tell.
const user = "65532:65532"

// Where things are in the image.
const (
	binaryPath       = "postrider"
	certificatesPath = "etc/ssl/certs/ca-certificates.crt" // where Go's crypto/x509 looks first
	sbomPath         = "usr/share/sbom/postrider.spdx.json"
)

// platformImage is an image for one platform, with the list of what is inside.
type platformImage struct {
	platform v1.Platform
	image    v1.Image
	sbom     []byte
}

// build makes the image for a platform: the binary, root certificates, an SBOM, and nothing else: no shell, no libc.
func build(ctx context.Context, r request, p v1.Platform) (platformImage, error) {
	binary, err := compile(ctx, r, p)
	if err != nil {
		return platformImage{}, err
	}
	sbom, err := describe(binary, r)
	if err != nil {
		return platformImage{}, err
	}
	layers := [][]file{
		{{certificatesPath, 0o644, certificates()}, {"etc/passwd", 0o644, []byte("nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")}, {"etc/group", 0o644, []byte("nonroot:x:65532:\n")}},
		{{binaryPath, 0o755, binary}, {sbomPath, 0o644, sbom}},
	}
	image, err := assemble(r, p, layers)
	return platformImage{platform: p, image: image, sbom: sbom}, err
}

func compile(ctx context.Context, r request, p v1.Platform) ([]byte, error) {
	folder, err := os.MkdirTemp("", "postrider-image-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	out := filepath.Join(folder, "postrider")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.version, "-o", out, "./cmd/postrider")
	command.Dir = r.top
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+p.OS, "GOARCH="+p.Architecture)
	if text, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, text)
	}
	return os.ReadFile(out)
}

// certificates are Mozilla's roots, as the Go project publishes them. Those which may sign for some names only are left
// out: a file of certificates cannot say so.
func certificates() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return b.Bytes()
}

func assemble(r request, p v1.Platform, layers [][]file) (v1.Image, error) {
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	// The platform comes before the layers: without it an engine may take the image for none of its own.
	image, err := mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: p.Architecture, OS: p.OS, Variant: p.Variant,
		Created: v1.Time{Time: r.created},
		RootFS:  v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/" + binaryPath}, User: user, WorkingDir: "/", Labels: labels(r),
			ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8081/tcp": {}},
		},
	})
	if err != nil {
		return nil, err
	}
	for _, files := range layers {
		layer, err := newLayer(files)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "make image", Comment: files[0].name}})
		if err != nil {
			return nil, err
		}
	}
	return image, nil
}

func labels(r request) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         "postrider",
		"org.opencontainers.image.description":   "Webhook delivery for Kubernetes",
		"org.opencontainers.image.source":        "https://github.com/postrider/postrider",
		"org.opencontainers.image.url":           "https://github.com/postrider/postrider",
		"org.opencontainers.image.documentation": "https://github.com/postrider/postrider/tree/main/docs",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.version":       r.version,
		"org.opencontainers.image.revision":      r.revision,
		"org.opencontainers.image.created":       r.created.Format("2006-01-02T15:04:05Z"),
	}
}

type file struct {
	name    string
	mode    int64
	content []byte
}

// newLayer makes a layer of files and the folders above them, all of root's and of the beginning of time.
func newLayer(files []file) (v1.Layer, error) {
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	folders := map[string]bool{".": true}
	var folder func(string) error
	folder = func(name string) error {
		if folders[name] {
			return nil
		}
		if err := folder(path.Dir(name)); err != nil {
			return err
		}
		folders[name] = true
		return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, Format: tar.FormatPAX})
	}
	for _, f := range files {
		if err := folder(path.Dir(f.name)); err != nil {
			return nil, err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}
