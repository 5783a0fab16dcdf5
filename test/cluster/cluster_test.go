package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

func TestTheServersFindWhatTheyAreToldToRead(t *testing.T) {
	t.Parallel()
	keys, kubeconfig, err := credentials("127.0.0.1:1234")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]bool{}
	for name := range keys {
		files[inNode+"/pki/"+name] = true
	}
	for name := range configuration("group", "overlayfs") {
		files[inNode+"/"+name] = true
	}
	for _, s := range []server{etcdServer(), apiServer(), controllerManager(), scheduler(), containerRuntime(), kubelet(), proxy()} {
		for _, arg := range s.args {
			_, value, _ := strings.Cut(arg, "=")
			if strings.HasPrefix(value, inNode+"/") && value != inNode+"/etcd" && !files[value] {
				t.Errorf("%s: %s is not written", s.name, arg)
			}
		}
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil || config.Host != "https://127.0.0.1:1234" || len(config.CertData) == 0 {
		t.Errorf("kubeconfig: got %v, %v", config, err)
	}
}

func TestConfigurationsAreWellFormed(t *testing.T) {
	t.Parallel()
	written := configuration("some-group", "native")
	var kubelet struct {
		CgroupRoot     string
		FailCgroupV1   *bool
		TLSCertFile    string
		ResolvConf     string
		EvictionHard   map[string]string
		ClusterDNS     []string
		EnforceNodeAll []string `json:"enforceNodeAllocatable"`
	}
	if err := yaml.Unmarshal(written["kubelet.yaml"], &kubelet); err != nil {
		t.Fatal(err)
	}
	if kubelet.CgroupRoot != "/some-group" || kubelet.FailCgroupV1 == nil || *kubelet.FailCgroupV1 || kubelet.EvictionHard["nodefs.available"] != "1%" || kubelet.EnforceNodeAll == nil {
		t.Errorf("kubelet: got %+v", kubelet)
	}
	var cni struct{ Plugins []struct{ Type string } }
	if err := json.Unmarshal(written["cni/10-pods.conflist"], &cni); err != nil || len(cni.Plugins) != 1 {
		t.Errorf("CNI: got %s, %v", written["cni/10-pods.conflist"], err)
	}
	if text := string(written["containerd.toml"]); !strings.Contains(text, `snapshotter = "native"`) || !strings.Contains(text, `sandbox = "`+pauseImage+`"`) {
		t.Errorf("containerd: got %s", text)
	}
}

func TestNodesOfTwoFoldersHaveTwoCgroups(t *testing.T) {
	t.Parallel()
	if a, b := cgroupName("/a"), cgroupName("/b"); a == b || a != cgroupName("/a") {
		t.Errorf("got %s and %s", a, b)
	}
}

func TestAFolderWhoseNodeIsGoneIsNotRunning(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if _, up, err := running(folder); err != nil || up {
		t.Errorf("without a lock: got %v, %v", up, err)
	}
	lock, err := lockFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	// This process stands for the node.
	started, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	write := func(s state) {
		t.Helper()
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(folder, "node"), 0o755), os.WriteFile(filepath.Join(folder, "node", stateName), text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write(state{PID: os.Getpid(), Started: started})
	if s, up, err := running(folder); err != nil || !up || s.PID != os.Getpid() {
		t.Errorf("with a node: got %+v, %v, %v", s, up, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, up, err := running(folder); err != nil || up {
		t.Errorf("after its end: got %v, %v", up, err)
	}
}

func TestALockWhoseHolderIsUnknownIsNobodyToKill(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	lock, err := lockFolder(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	text, err := json.Marshal(state{PID: os.Getpid(), Started: "1"}) // another process had this number
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(folder, "node"), 0o755), os.WriteFile(filepath.Join(folder, "node", stateName), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, up, err := running(folder); err == nil || up {
		t.Errorf("got %v, %v, want an error", up, err)
	}
}

func TestRemainsNamesTheFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	found, err := Remains(folder)
	if err != nil || len(found) != 1 || found[0] != "folder "+folder {
		t.Errorf("got %v, %v", found, err)
	}
	found, err = Remains(filepath.Join(folder, "none"))
	if err != nil || len(found) != 0 {
		t.Errorf("of nothing: got %v, %v", found, err)
	}
}

func TestCallersAreConnectedAndHearTheEnd(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	server, outside := listen(), listen()
	go passOn(outside, server.Addr().String())
	go func() {
		c, err := server.Accept()
		if err != nil {
			return
		}
		text, err := io.ReadAll(c) // to the end of what the caller says
		if err == nil {
			_, _ = c.Write(append([]byte("heard "), text...))
		}
		_ = c.Close()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", outside.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	halfClose(c)
	if text, err := io.ReadAll(c); err != nil || string(text) != "heard hello" {
		t.Errorf("got %q, %v", text, err)
	}
}
