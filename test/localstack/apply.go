package localstack

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// ReadManifests reads the objects of some YAML files, or of the files of a folder in the order of their names, but for
// kustomizations. edit, if not nil, changes each file's text first.
func ReadManifests(edit func([]byte) []byte, paths ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, path := range paths {
		files, err := manifestFiles(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("read a manifest: %w", err)
			}
			if edit != nil {
				text = edit(text)
			}
			if objects, err = appendObjects(objects, text); err != nil {
				return nil, fmt.Errorf("read %s: %w", file, err)
			}
		}
	}
	return objects, nil
}

func manifestFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("find the manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	files, err := filepath.Glob(filepath.Join(path, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list the manifests of %s: %w", path, err)
	}
	kept := files[:0]
	for _, file := range files {
		if filepath.Base(file) != "kustomization.yaml" {
			kept = append(kept, file)
		}
	}
	return kept, nil
}

func appendObjects(objects []*unstructured.Unstructured, text []byte) ([]*unstructured.Unstructured, error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		var content map[string]any
		if err := yaml.Unmarshal(document, &content); err != nil {
			return nil, err
		}
		if len(content) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: content})
		}
	}
}

// Apply applies objects as kubectl apply --server-side does, namespaces first, and returns what the API server made of
// each.
func Apply(ctx context.Context, config *rest.Config, owner string, objects ...*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	ordered := append([]*unstructured.Unstructured{}, objects...)
	sort.SliceStable(ordered, func(i, j int) bool { return rank(ordered[i]) < rank(ordered[j]) })
	applied := make([]*unstructured.Unstructured, 0, len(ordered))
	for _, o := range ordered {
		o := o.DeepCopy()
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(owner), client.ForceOwnership); err != nil {
			return nil, fmt.Errorf("apply %s %s/%s: %w", o.GetKind(), o.GetNamespace(), o.GetName(), err)
		}
		applied = append(applied, o)
	}
	return applied, nil
}

func rank(o *unstructured.Unstructured) int {
	switch o.GetKind() {
	case "Namespace":
		return 0
	case "ServiceAccount", "ClusterRole", "Role", "Secret":
		return 1
	}
	return 2
}
