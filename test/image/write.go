package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// write writes what was built and returns the files: for each platform an archive for `docker load`, `ctr images import` and
// `kind load image-archive`, and its SBOM; and one OCI layout of all platforms, for `skopeo copy` and `crane push`.
func write(r request, built []platformImage) ([]string, error) {
	tag, err := name.NewTag(r.repository + ":" + r.version)
	if err != nil {
		return nil, fmt.Errorf("the name of the image: %w", err)
	}
	var files []string
	base := filepath.Join(r.out, "postrider-"+r.version)
	for _, b := range built {
		archive := fmt.Sprintf("%s-%s-%s.tar", base, b.platform.OS, b.platform.Architecture)
		if err := tarball.WriteToFile(archive, tag, b.image); err != nil {
			return nil, fmt.Errorf("write %s: %w", archive, err)
		}
		sbom := fmt.Sprintf("%s-%s-%s.spdx.json", base, b.platform.OS, b.platform.Architecture)
		if err := os.WriteFile(sbom, b.sbom, 0o644); err != nil {
			return nil, err
		}
		files = append(files, archive, sbom)
	}
	all := base + "-oci.tar"
	return append(files, all), writeLayout(all, tag, built)
}

func writeLayout(archive string, tag name.Tag, built []platformImage) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, b := range built {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: b.image, Descriptor: v1.Descriptor{Platform: &b.platform}})
	}
	folder, err := os.MkdirTemp("", "postrider-layout-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	to, err := layout.Write(folder, empty.Index)
	if err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	// containerd takes the name of the image from the first annotation, others from the second.
	annotations := layout.WithAnnotations(map[string]string{
		"io.containerd.image.name": tag.Name(), "org.opencontainers.image.ref.name": tag.TagStr(),
	})
	if err := to.AppendIndex(index, annotations); err != nil {
		return fmt.Errorf("write the layout: %w", err)
	}
	return pack(archive, folder)
}

func pack(archive, folder string) (err error) {
	out, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() {
		if closing := out.Close(); err == nil {
			err = closing
		}
	}()
	to := tar.NewWriter(out)
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		relative, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return to.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: relative + "/", Mode: 0o755})
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: relative, Mode: 0o644, Size: info.Size()}); err != nil {
			return err
		}
		from, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = from.Close() }()
		_, err = io.Copy(to, from)
		return err
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", archive, err)
	}
	return to.Close()
}
