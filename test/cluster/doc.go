// Package cluster runs a real Kubernetes of one node on this machine, without Docker and without images from elsewhere:
// etcd, the control plane, containerd, kubelet, kube-proxy and CoreDNS, built from source once per version. It needs Linux
// and root, and about 2 GB of memory.
//
// The node is one process, the first of namespaces of its own for processes, mounts and network. What it starts and mounts,
// its bridge, its packet filter and its routes end with that process, however it ends, and no packet can leave the machine:
// its network has no way out. The API server is reached through a port on loopback. What remains of a killed node are files
// in its folder and empty cgroups, which the next Up or Down of that folder removes.
//
// [Up] and [Down] are for tests; cmd/cluster is for people. A program that calls Up calls [BeNode] first thing in main, since
// the node is the same program once more. Start at up.go, then node.go and servers.go.
package cluster
