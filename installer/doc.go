// Package installer does what an installation needs beside the three parts: it makes the Secrets that nobody may choose
// for the platform team, and tries the whole way of an event once.
//
// The chart runs both as hooks: [EnsureSecrets] before an install or upgrade, [SelfTest] for `helm test`. It imports
// client-go, signature and nothing else of ours; what a new Secret holds is the caller's affair.
//
// Start reading at secrets.go.
package installer
