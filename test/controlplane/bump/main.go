// Command bump writes this module's go.mod for other versions of Kubernetes and etcd:
//
//	cd test/controlplane && go run ./bump v1.37.2 v3.7.3 && go mod tidy
//
// Kubernetes cannot be required like any other module: its go.mod names its staging modules as v0.0.0 and replaces them
// with folders beside it. What is written here takes over its requirements and points both to the published modules.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const intro = `// Written by ./bump; see there how to change the versions.
//
// This module holds the servers that tests run: its content names the folder in .cache that they are built into.
module github.com/postrider/postrider/test/controlplane
`

// tools are what is built from this module.
var tools = []string{
	"go.etcd.io/etcd/server/v3",
	"k8s.io/kubernetes/cmd/kube-apiserver",
	"k8s.io/kubernetes/cmd/kube-controller-manager",
	"k8s.io/kubernetes/cmd/kube-proxy",
	"k8s.io/kubernetes/cmd/kube-scheduler",
	"k8s.io/kubernetes/cmd/kubectl",
	"k8s.io/kubernetes/cmd/kubelet",
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: go run ./bump <version of Kubernetes> <version of etcd>, for example v1.37.2 v3.7.3")
		os.Exit(2)
	}
	if err := bump(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// module is what `go mod edit -json` prints, as far as it is used.
type module struct {
	Go      string
	Require []struct{ Path, Version string }
	Replace []struct{ Old struct{ Path string } }
}

func bump(kubernetes, etcd string) error {
	minor, ok := strings.CutPrefix(kubernetes, "v1.")
	if !ok {
		return fmt.Errorf("version of Kubernetes: want v1.x.y, got %s", kubernetes)
	}
	staging := "v0." + minor
	theirs, err := requirements(kubernetes)
	if err != nil {
		return err
	}
	var out strings.Builder
	out.WriteString(intro)
	fmt.Fprintf(&out, "\ngo %s\n\ngodebug default=go%s\n", theirs.Go, strings.Join(strings.Split(theirs.Go, ".")[:2], "."))
	fmt.Fprintf(&out, "\ntool (\n\t%s\n)\n", strings.Join(tools, "\n\t"))
	fmt.Fprintf(&out, "\nrequire (\n\tgo.etcd.io/etcd/server/v3 %s // indirect\n\tk8s.io/kubernetes %s // indirect\n)\n", etcd, kubernetes)
	out.WriteString("\nrequire (\n")
	for _, r := range theirs.Require {
		if r.Version == "v0.0.0" {
			r.Version = staging
		}
		fmt.Fprintf(&out, "\t%s %s // indirect\n", r.Path, r.Version)
	}
	out.WriteString(")\n\nreplace (\n")
	for _, r := range theirs.Replace {
		fmt.Fprintf(&out, "\t%s => %s %s\n", r.Old.Path, r.Old.Path, staging)
	}
	out.WriteString(")\n")
	return os.WriteFile("go.mod", []byte(out.String()), 0o644)
}

func requirements(kubernetes string) (module, error) {
	var download struct{ GoMod string }
	if err := goJSON(&download, "mod", "download", "-json", "k8s.io/kubernetes@"+kubernetes); err != nil {
		return module{}, err
	}
	var m module
	if err := goJSON(&m, "mod", "edit", "-json", download.GoMod); err != nil {
		return module{}, err
	}
	if len(m.Replace) == 0 {
		return module{}, errors.New("the go.mod of Kubernetes replaces nothing any more; this command wants rethinking")
	}
	return m, nil
}

func goJSON(into any, args ...string) error {
	cmd := exec.CommandContext(context.Background(), "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return json.Unmarshal(out, into)
}
