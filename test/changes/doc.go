// Package changes tests what may change while Postrider runs: a rotated password and its file, the settings file. The parts
// are real processes, over a Postgres with TLS and an API server of their own, and files change as a kubelet changes them.
//
// Start at changes_test.go; installation_test.go brings everything up. It imports test/localstack and api/v1alpha1.
package changes
