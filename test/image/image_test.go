package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func testRequest(t *testing.T) request {
	t.Helper()
	r, err := parse(t.Context(), []string{"-out", t.TempDir(), "-version", "v9.8.7", "-revision", "abc", "-platforms", "linux/" + runtime.GOARCH})
	if err != nil {
		t.Fatal(err)
	}
	r.created = time.Unix(1_700_000_000, 0).UTC()
	return r
}

func TestTheImageHoldsTheBinaryAndNothingThatCouldRunBesideIt(t *testing.T) {
	t.Parallel()
	r := testRequest(t)
	one, err := build(t.Context(), r, r.platforms[0])
	if err != nil {
		t.Fatal(err)
	}
	contents := unpack(t, one.image)
	var executable []string
	for path, f := range contents {
		if f.mode&0o111 != 0 {
			executable = append(executable, path)
		}
	}
	if len(executable) != 1 || executable[0] != binaryPath {
		t.Errorf("the image can run %v, want %s alone", executable, binaryPath)
	}
	program, err := elf.NewFile(bytes.NewReader(contents[binaryPath].content))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range program.Progs {
		if part.Type == elf.PT_INTERP {
			t.Error("the binary is not static")
		}
	}
	config, err := one.image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[1-9][0-9]*(:[0-9]+)?$`).MatchString(config.Config.User) {
		t.Errorf("user %q is no number above 0: Kubernetes cannot tell that it is not root", config.Config.User)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("the image is for %s/%s", config.OS, config.Architecture)
	}
	for key, want := range map[string]string{"version": "v9.8.7", "revision": "abc", "licenses": "Apache-2.0", "created": "2023-11-14T22:13:20Z"} {
		if got := config.Config.Labels["org.opencontainers.image."+key]; got != want {
			t.Errorf("label %s: got %q, want %q", key, got, want)
		}
	}
	roots := 0
	for rest := contents[certificatesPath].content; ; roots++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			t.Errorf("root certificate %d: %v", roots, err)
		}
	}
	if roots < 100 {
		t.Errorf("there are %d root certificates; receivers could not be verified", roots)
	}
	checkSBOM(t, contents[sbomPath].content)
}

// Two who build the same can compare digests.
func TestTheSameContentGivesTheSameImage(t *testing.T) {
	t.Parallel()
	r := testRequest(t)
	var digests []string
	for range 2 {
		image, err := assemble(r, r.platforms[0], [][]file{{{certificatesPath, 0o644, certificates()}}, {{binaryPath, 0o755, []byte("binary")}}})
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest(t, image))
	}
	if digests[0] != digests[1] {
		t.Errorf("got %s and %s", digests[0], digests[1])
	}
}

func checkSBOM(t *testing.T, text []byte) {
	t.Helper()
	var d spdxDocument
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids, packages := map[string]bool{d.ID: true}, map[string]string{}
	for _, p := range d.Packages {
		if ids[p.ID] {
			t.Errorf("SBOM: %s is there twice", p.ID)
		}
		ids[p.ID], packages[p.Name] = true, p.Version
	}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("SBOM: %s %s %s names what is not there", r.From, r.Type, r.To)
		}
	}
	if packages["postrider"] != "v9.8.7" || packages["stdlib"] == "" || packages["github.com/jackc/pgx/v5"] == "" || packages["k8s.io/client-go"] == "" {
		t.Errorf("SBOM: packages are missing among %v", packages)
	}
}

func TestArchivesCanBeReadBack(t *testing.T) {
	t.Parallel()
	r := testRequest(t)
	r.platforms = []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}
	var built []platformImage
	for _, p := range r.platforms {
		image, err := assemble(r, p, [][]file{{{binaryPath, 0o755, []byte(p.Architecture)}}})
		if err != nil {
			t.Fatal(err)
		}
		built = append(built, platformImage{platform: p, image: image, sbom: []byte("{}")})
	}
	if _, err := write(r, built); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(r.repository + ":" + r.version)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range built {
		image, err := tarball.ImageFromPath(filepath.Join(r.out, "postrider-v9.8.7-linux-"+b.platform.Architecture+".tar"), &tag)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(unpack(t, image)[binaryPath].content); got != b.platform.Architecture {
			t.Errorf("the archive for %s holds the binary for %s", b.platform.Architecture, got)
		}
	}

	folder := t.TempDir()
	unpackTo(t, filepath.Join(r.out, "postrider-v9.8.7-oci.tar"), folder)
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	outer, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(outer.Manifests) != 1 || outer.Manifests[0].Annotations["io.containerd.image.name"] != "ghcr.io/postrider/postrider:v9.8.7" {
		t.Fatalf("got %+v", outer.Manifests)
	}
	inner, err := index.ImageIndex(outer.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := inner.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range manifest.Manifests {
		if m.Platform.String() != built[i].platform.String() || m.Digest.String() != digest(t, built[i].image) {
			t.Errorf("entry %d is for %s, want %s", i, m.Platform, built[i].platform.String())
		}
	}
}

func TestRequestsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-platforms", "windows/amd64"}, {"-platforms", "linux"}, {"-version", ""}, {"-version", "a:b"}} {
		if _, err := parse(t.Context(), args); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: got %v, want an error that names %s", args, err, args[0])
		}
	}
}

func digest(t *testing.T, image v1.Image) string {
	t.Helper()
	d, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func unpack(t *testing.T, image v1.Image) map[string]file {
	t.Helper()
	flat := mutate.Extract(image)
	defer func() { _ = flat.Close() }()
	all := map[string]file{}
	each(t, flat, func(h *tar.Header, content []byte) {
		if h.Typeflag == tar.TypeReg {
			all[h.Name] = file{h.Name, h.Mode, content}
		}
	})
	return all
}

func unpackTo(t *testing.T, archive, folder string) {
	t.Helper()
	from, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	each(t, from, func(h *tar.Header, content []byte) {
		path := filepath.Join(folder, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			return
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	})
}

func each(t *testing.T, from io.Reader, do func(*tar.Header, []byte)) {
	t.Helper()
	archive := tar.NewReader(from)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		do(header, content)
	}
}
