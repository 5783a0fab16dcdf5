// Package controllers makes the store follow the WebhookEndpoints of the cluster, and their status follow the store.
//
// Start at [Run] in setup.go, then read [Reconciler.Reconcile] in webhookendpoint_controller.go from top to bottom. What
// it decides is in pure functions beside it: identity.go (whose row is this), spec.go (what is asked for), rotation.go
// (which keys sign), same.go (need anything be written), status.go and figures.go (what the status says).
// Around it: namespace_controller.go, sweep.go (rows whose object vanished unseen), feed.go (status follows the store),
// ownership.go (one installation owns a database), cache.go (what is watched, and what of it is never kept).
//
// It may import the API types, signature, destination, keyring and store, and never ingest or dispatcher. It sends no
// webhooks. All writes to the API server are status writes and Kubernetes Events; there is no finalizer.
package controllers
