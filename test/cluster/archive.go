package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// Image is what a container image says about itself.
type Image struct {
	Name       string // with a tag
	Entrypoint []string
	Env        []string // name=value
	User       string   // number
}

// WriteImage writes an image of one layer as a tarball that `docker load` and Import take. The layer is the tree below a
// folder; everything in it belongs to root.
func WriteImage(tarball string, image Image, tree string) (err error) {
	layer, err := os.CreateTemp(filepath.Dir(tarball), ".layer-")
	if err != nil {
		return fmt.Errorf("write an image: %w", err)
	}
	defer func() { err = errors.Join(err, layer.Close(), os.Remove(layer.Name())) }()
	sum := sha256.New()
	if err := writeTree(io.MultiWriter(layer, sum), tree); err != nil {
		return fmt.Errorf("write the layer of %s: %w", image.Name, err)
	}
	config, err := json.Marshal(map[string]any{
		// An image without these might be for another machine, and is left out of imports.
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": image.Entrypoint, "Env": image.Env, "User": image.User},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum.Sum(nil))}},
	})
	if err != nil {
		return err
	}
	name := sha256.Sum256(config)
	configName := hex.EncodeToString(name[:]) + ".json"
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": []string{image.Name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	// Renamed when whole, so that nobody takes half of one for an image.
	if err := writeParts(tarball+".part", part{"manifest.json", bytes.NewReader(manifest)}, part{configName, bytes.NewReader(config)}, part{"layer.tar", layer}); err != nil {
		return fmt.Errorf("write the image %s: %w", image.Name, errors.Join(err, os.Remove(tarball+".part")))
	}
	return os.Rename(tarball+".part", tarball)
}

type part struct {
	name    string
	content io.ReadSeeker
}

func writeParts(path string, parts ...part) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	archive := tar.NewWriter(file)
	for _, p := range parts {
		size, err := p.content.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		if _, err := p.content.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := archive.WriteHeader(&tar.Header{Name: p.name, Mode: 0o644, Size: size, ModTime: epoch}); err != nil {
			return err
		}
		if _, err := io.Copy(archive, p.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// epoch makes the same content the same image, whenever it was built.
var epoch = time.Unix(0, 0)

func writeTree(to io.Writer, root string) error {
	archive := tar.NewWriter(to)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		if header.Name, err = filepath.Rel(root, path); err != nil {
			return err
		}
		if info.IsDir() {
			header.Name += "/"
		}
		header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
		header.ModTime, header.AccessTime, header.ChangeTime = epoch, time.Time{}, time.Time{}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(archive, file)
		return errors.Join(err, file.Close())
	})
	return errors.Join(err, archive.Close())
}
