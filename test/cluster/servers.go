package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/postrider/postrider/test/localstack"
)

// Addresses exist in the node's network alone, so they meet nobody else's.
const (
	nodeName      = "node1"
	nodeAddress   = "10.244.0.1" // also the pods' gateway
	podRange      = "10.244.0.0/24"
	serviceRange  = "10.96.0.0/16"
	kubernetesIP  = "10.96.0.1"
	dnsAddress    = "10.96.0.10"
	apiPort       = "6443"
	bridge        = "node0"
	etcdURL       = "http://127.0.0.1:2379"
	clusterDomain = "cluster.local"
	pauseImage    = "registry.k8s.io/pause:3.10.1"
)

// Folders of the node as it sees them. The first is <folder>/node for the rest of the machine.
const (
	inNode           = "/node"
	programsFolder   = "/opt/bin"
	containerdSocket = "/run/containerd/containerd.sock"
)

func pki(name string) string { return inNode + "/pki/" + name }

// server is a process of the node.
type server struct {
	name string
	args []string
}

func etcdServer() server {
	return server{"etcd", []string{
		"--name=etcd", "--data-dir=" + inNode + "/etcd", "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=etcd=http://127.0.0.1:2380",
	}}
}

func apiServer() server {
	return server{"kube-apiserver", []string{
		"--etcd-servers=" + etcdURL, "--secure-port=" + apiPort,
		"--advertise-address=" + nodeAddress, // which the bridge has by now; else it is refused
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"), "--client-ca-file=" + pki("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc." + clusterDomain,
		"--service-account-key-file=" + pki("service-account.key"), "--service-account-signing-key-file=" + pki("service-account.key"),
		"--service-cluster-ip-range=" + serviceRange,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		// For logs, exec and port-forward.
		"--kubelet-client-certificate=" + pki("kubelet-client.crt"), "--kubelet-client-key=" + pki("kubelet-client.key"),
		"--kubelet-certificate-authority=" + pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
	}}
}

func controllerManager() server {
	return server{"kube-controller-manager", []string{
		"--kubeconfig=" + pki("admin.kubeconfig"), "--bind-address=127.0.0.1", "--leader-elect=false",
		"--service-account-private-key-file=" + pki("service-account.key"), "--root-ca-file=" + pki("ca.crt"),
		"--use-service-account-credentials=true", "--flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins",
	}}
}

func scheduler() server {
	return server{"kube-scheduler", []string{"--kubeconfig=" + pki("admin.kubeconfig"), "--bind-address=127.0.0.1", "--leader-elect=false"}}
}

func containerRuntime() server {
	return server{"containerd", []string{"--config=" + inNode + "/containerd.toml"}}
}

func kubelet() server {
	return server{"kubelet", []string{
		"--config=" + inNode + "/kubelet.yaml", "--kubeconfig=" + pki("node.kubeconfig"),
		"--hostname-override=" + nodeName, "--node-ip=" + nodeAddress,
	}}
}

func proxy() server {
	return server{"kube-proxy", []string{
		"--kubeconfig=" + pki("admin.kubeconfig"), "--proxy-mode=nftables", "--cluster-cidr=" + podRange, "--hostname-override=" + nodeName,
		"--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249",
		"--conntrack-max-per-core=0", // the machine's, not the node's
	}}
}

// configuration returns the files below /node that the servers read, but for those of writePKI.
func configuration(cgroup, snapshotter string) map[string][]byte {
	cni, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "pods",
		"plugins": []any{map[string]any{
			// Each pod has a link of its own to the node, which routes between them: with a bridge, whether answers to a
			// Service's address find back would depend on br_netfilter.
			"type": "ptp", "ipMasq": false,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": "/run/ipam",
				"ranges": []any{[]any{map[string]any{"subnet": podRange, "gateway": nodeAddress}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	})
	if err != nil {
		panic(err) // of constants
	}
	return map[string][]byte{
		"cni/10-pods.conflist": cni,
		// An image's user and limits apply; the kubelet asks this file for what pods do not look up in the cluster: nobody.
		"resolv.conf": []byte("nameserver " + dnsAddress + "\n"),
		"containerd.toml": fmt.Appendf(nil, `version = 3
root = "/node/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = %q
[plugins."io.containerd.cri.v1.images"]
  snapshotter = %q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE, which many sandboxes lack, no container could start.
  restrict_oom_score_adj = true
  # A profile would be loaded into the machine's kernel.
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%q]
  conf_dir = "/node/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
`, containerdSocket, snapshotter, pauseImage, cniFolder),
		"kubelet.yaml": fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%s
containerRuntimeEndpoint: unix://%s
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /node/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: /node/pki/node.crt
tlsPrivateKeyFile: /node/pki/node.key
clusterDomain: %s
clusterDNS: [%s]
resolvConf: /node/resolv.conf
volumePluginDir: /var/lib/kubelet/volumeplugins
failSwapOn: false
enforceNodeAllocatable: []
evictionHard: {nodefs.available: 1%%, imagefs.available: 1%%, memory.available: 100Mi}
# Images are imported, and could not be pulled again.
imageGCHighThresholdPercent: 100
`, cgroup, containerdSocket, clusterDomain, dnsAddress),
	}
}

// credentials returns the files below /node/pki, and what the rest of the machine reaches the API server with.
func credentials(hostPort string) (files map[string][]byte, kubeconfig []byte, err error) {
	ca, err := localstack.NewAuthority()
	if err != nil {
		return nil, nil, err
	}
	key, err := localstack.NewKey()
	if err != nil {
		return nil, nil, err
	}
	files = map[string][]byte{"ca.crt": ca.Certificate(), "service-account.key": key}
	for _, c := range []struct {
		file, user string
		groups     []string
		hosts      []string
	}{
		{"apiserver", "kube-apiserver", nil, []string{"127.0.0.1", kubernetesIP, nodeAddress, "kubernetes", "kubernetes.default", "kubernetes.default.svc"}},
		{"admin", "admin", []string{"system:masters"}, nil},
		{"node", "system:node:" + nodeName, []string{"system:nodes"}, []string{nodeName, nodeAddress}},
		{"kubelet-client", "apiserver-kubelet-client", []string{"system:masters"}, nil},
	} {
		certificate, key, err := ca.Issue(c.user, c.groups, c.hosts...)
		if err != nil {
			return nil, nil, err
		}
		files[c.file+".crt"], files[c.file+".key"] = certificate, key
	}
	within := "https://127.0.0.1:" + apiPort
	for name, server := range map[string]string{"admin": within, "node": within, "outside": "https://" + hostPort} {
		user := name
		if name == "outside" {
			user = "admin"
		}
		config := clientcmdapi.NewConfig()
		config.Clusters["postrider-test"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca.Certificate()}
		config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: files[user+".crt"], ClientKeyData: files[user+".key"]}
		config.Contexts["postrider-test"] = &clientcmdapi.Context{Cluster: "postrider-test", AuthInfo: user}
		config.CurrentContext = "postrider-test"
		text, err := clientcmd.Write(*config)
		if err != nil {
			return nil, nil, fmt.Errorf("encode a kubeconfig: %w", err)
		}
		if name == "outside" {
			kubeconfig = bytes.Clone(text)
			continue
		}
		files[name+".kubeconfig"] = text
	}
	return files, kubeconfig, nil
}

func program(name string) string { return filepath.Join(programsFolder, name) }
