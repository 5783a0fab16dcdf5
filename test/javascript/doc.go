// Package javascript holds one test: what package signature signs is verified by the official JavaScript library of
// Standard Webhooks, which many receivers use. The Go library's turn is in signature/official_test.go.
//
// The library is pinned by package.json and package-lock.json and installed into .cache/javascript once for each content of
// the two. The lock names no registry: npm asks the one that it is configured with, and the integrity fields say whether
// that gave the right files. To change the version, edit package.json and run, in this folder:
//
//	npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts
//
// Start at javascript_test.go; the receiver is verify.mjs, which install_test.go gives its library.
package javascript
