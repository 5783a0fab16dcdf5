// Package secrecy holds one test: an installation lives through an eventful day at its most talkative, and afterwards
// everything that it wrote anywhere is searched for every secret that it was given. The search, secret.go, serves other tests too.
package secrecy
