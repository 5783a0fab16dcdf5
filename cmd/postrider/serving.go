package main

import "github.com/spf13/pflag"

// serving says whom this installation serves. The controller and ingest must agree on it: nobody delivers what is posted
// to other namespaces.
type serving struct {
	namespaces []string
}

func (s *serving) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&s.namespaces, "watch-namespaces", nil, "the only namespaces whose endpoints are served, and that are posted to (default: all)")
}

// validate leaves the names to the parts.
func (s *serving) validate() error { return nil }
