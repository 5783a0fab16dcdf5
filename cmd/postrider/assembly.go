package main

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/controllers"
)

// assembly is what configures a process: the settings of its parts, and of the site where they run. Another one may take
// its place while the process runs, see follow.go.
type assembly struct {
	site  *site
	parts []part
}

// site is where the parts of a process run: what configures their surroundings, once for all of them.
type site struct {
	db     database
	in     installation
	log    logging
	watch  observing
	ring   keys
	to     reach
	kube   cluster
	serves serving
	follow following
}

// partsCommand makes the command that runs some parts in one process.
func partsCommand(use, short string, metrics func() registry, parts func(*site) []part) *cobra.Command {
	assemble := func() *assembly {
		s := new(site)
		return &assembly{site: s, parts: parts(s)}
	}
	a := assemble()
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs}
	declare(c.Flags(), a.settings())
	var again func(text []byte) (*assembly, error)
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		line := commandLineOf(c.Flags())
		again = func(text []byte) (*assembly, error) {
			next := assemble()
			flags := pflag.NewFlagSet(use, pflag.ContinueOnError)
			declare(flags, next.settings())
			return next, resolve(flags, next.settings(), line.restore, fromProcess, fileOf(text))
		}
		return resolve(c.Flags(), a.settings(), fromProcess, a.site.follow.begin)
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		log := a.site.log.logger(use)
		controllers.RedirectLogs(log.Handler()) // what the Kubernetes libraries log
		p := &process{log: log, metrics: metrics(), schema: newSchemaWatch(), first: a.site, now: a, running: make([]runner, len(a.parts))}
		return p.run(c.Context(), again)
	}
	return c
}

// settings are those of the parts and of what they need.
func (a *assembly) settings() []settings {
	s := a.site
	all := []settings{&s.db, &s.in, &s.log, &s.watch, &s.follow}
	for _, needed := range []struct {
		by func(needs) bool
		settings
	}{
		{func(n needs) bool { return n.keyring }, &s.ring},
		{func(n needs) bool { return n.destinations }, &s.to},
		{func(n needs) bool { return n.kubernetes }, &s.kube},
		{func(n needs) bool { return n.serving }, &s.serves},
	} {
		if slices.ContainsFunc(a.parts, func(p part) bool { return needed.by(p.needs()) }) {
			all = append(all, needed.settings)
		}
	}
	for _, p := range a.parts {
		all = append(all, p)
	}
	return all
}
