// Package localstack runs what Postrider stands on, on this machine and on loopback only: Postgres, etcd and
// kube-apiserver. Tests, the demo and `make up` share it.
//
// A test package calls [Main] from its TestMain and then asks for what a test needs: [Database] gives a fresh,
// migrated database, [KubeAPI] a real API server, [Namespace] a namespace of the test's own. Both servers are started
// on first use, once per process, and stopped after the last test. Where the variables [EnvDatabaseURL] and
// [EnvKubeconfig] are set (cmd/stack sets them for a whole `go test ./...`) those servers are used instead.
// Tests that stop and restart a server start a private one: [NewPostgres], [NewKubeAPI].
//
// No process outlives its starter, not even one that is killed: see process.go. The user's kubeconfig is never read.
// The package imports migrations and nothing else of ours.
package localstack
