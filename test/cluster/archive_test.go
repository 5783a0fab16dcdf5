package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// unpack returns the files of an archive, and what its links point to.
func unpack(t *testing.T, content []byte) map[string]string {
	t.Helper()
	files := map[string]string{}
	for archive := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 {
			t.Errorf("%s belongs to %d:%d, want root", header.Name, header.Uid, header.Gid)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text) + header.Linkname
	}
}

func TestAnImageSaysForWhichMachineItIsAndHoldsTheTree(t *testing.T) {
	t.Parallel()
	tree, out := t.TempDir(), filepath.Join(t.TempDir(), "image.tar")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(tree, "bin"), 0o755),
		os.WriteFile(filepath.Join(tree, "bin/busybox"), []byte("program"), 0o755),
		os.Symlink("busybox", filepath.Join(tree, "bin/sh")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	image := Image{Name: "postrider.test/x:1", Entrypoint: []string{"/bin/sh"}, Env: []string{"A=b"}, User: "7"}
	var written [2][]byte
	for i := range written {
		if err := WriteImage(out, image, tree); err != nil {
			t.Fatal(err)
		}
		var err error
		if written[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(written[0], written[1]) {
		t.Error("the same tree gave two different images")
	}
	files := unpack(t, written[0])
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil || len(manifest) != 1 || len(manifest[0].Layers) != 1 {
		t.Fatalf("manifest: got %s, %v", files["manifest.json"], err)
	}
	if manifest[0].RepoTags[0] != image.Name {
		t.Errorf("name: got %v, want %s", manifest[0].RepoTags, image.Name)
	}
	var config struct {
		OS, Architecture string
		Config           struct {
			Entrypoint, Env []string
			User            string
		}
		RootFS struct {
			IDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal([]byte(files[manifest[0].Config]), &config); err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != runtime.GOARCH || config.Config.User != "7" || config.Config.Entrypoint[0] != "/bin/sh" {
		t.Errorf("config: got %+v", config)
	}
	layer := files[manifest[0].Layers[0]]
	sum := sha256.Sum256([]byte(layer))
	if want := "sha256:" + hex.EncodeToString(sum[:]); config.RootFS.IDs[0] != want {
		t.Errorf("layer: got %v, want %s", config.RootFS.IDs, want)
	}
	content := unpack(t, []byte(layer))
	if content["bin/busybox"] != "program" || content["bin/sh"] != "busybox" {
		t.Errorf("tree: got %v", content)
	}
}

func TestAnImageThatCannotBeMadeLeavesNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := WriteImage(filepath.Join(dir, "image.tar"), Image{Name: "x"}, filepath.Join(dir, "missing")); err == nil {
		t.Error("an image of nothing was made")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
