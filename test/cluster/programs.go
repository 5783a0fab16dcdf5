package cluster

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/postrider/postrider/test/localstack"
)

const (
	controlplane = "controlplane"
	containerd   = "cluster/containerd"

	containerdTags = "netgo,osusergo,static_build,no_btrfs,no_devmapper,no_zfs"
)

// programs that run in the node.
var programs = []localstack.Program{
	{Name: "etcd", Module: controlplane, Package: "go.etcd.io/etcd/server/v3", Usually: "half a minute"},
	{Name: "kube-apiserver", Module: controlplane, Package: "k8s.io/kubernetes/cmd/kube-apiserver", Usually: "4 to 6 minutes"},
	{Name: "kube-controller-manager", Module: controlplane, Package: "k8s.io/kubernetes/cmd/kube-controller-manager", Usually: "a minute"},
	{Name: "kube-scheduler", Module: controlplane, Package: "k8s.io/kubernetes/cmd/kube-scheduler", Usually: "half a minute"},
	{Name: "kubelet", Module: controlplane, Package: "k8s.io/kubernetes/cmd/kubelet", Usually: "a minute"},
	{Name: "kube-proxy", Module: controlplane, Package: "k8s.io/kubernetes/cmd/kube-proxy", Usually: "half a minute"},
	{Name: "containerd", Module: containerd, Package: "github.com/containerd/containerd/v2/cmd/containerd", Tags: containerdTags, Usually: "a minute"},
	{Name: "containerd-shim-runc-v2", Module: containerd, Package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", Tags: containerdTags, Usually: "10 seconds"},
	{Name: "ctr", Module: containerd, Package: "github.com/containerd/containerd/v2/cmd/ctr", Tags: containerdTags, Usually: "20 seconds"},
}

var coredns = localstack.Program{Name: "coredns", Module: "cluster/coredns", Package: ".", Usually: "half a minute"}

const cniFolder = "/usr/lib/cni"

// packages of Debian that the node needs, each with a file that tells whether it is there.
var packages = []struct{ name, file string }{
	{"runc", "runc"},
	{"nftables", "nft"},
	{"iproute2", "ip"},
	{"util-linux", "nsenter"},
	{"containernetworking-plugins", cniFolder + "/ptp"},
}

// provide makes sure that all programs are there and returns where those are that were built, by name.
func provide(ctx context.Context, progress io.Writer) (map[string]string, error) {
	var missing []string
	for _, p := range packages {
		if filepath.IsAbs(p.file) {
			if _, err := os.Stat(p.file); err == nil {
				continue
			}
		} else if _, err := exec.LookPath(p.file); err == nil {
			continue
		}
		missing = append(missing, p.name)
	}
	if len(missing) > 0 {
		if err := localstack.InstallPackages(ctx, progress, missing...); err != nil {
			return nil, err
		}
	}
	built := map[string]string{}
	for _, p := range programs {
		path, err := p.Path(ctx, progress)
		if err != nil {
			return nil, err
		}
		built[p.Name] = path
	}
	return built, nil
}
