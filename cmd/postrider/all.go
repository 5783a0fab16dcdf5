package main

import (
	"github.com/spf13/cobra"
)

func allCommand() *cobra.Command {
	var db database
	var in installation
	var log logging
	var watch observing
	var ring keys
	var to reach
	var kube cluster
	var lim limits
	var a accepting
	d := dispatching{limits: &lim}
	k := controlling{in: &in, limits: &lim}
	return configure(&cobra.Command{
		Use:   "all",
		Short: "Run controller, dispatcher and ingest in one process, for development",
		RunE: func(c *cobra.Command, _ []string) error {
			logger := log.logger("all")
			return runParts(c.Context(), logger, &watch, controllerRegistry(),
				k.part(&db, &ring, &to, &kube), d.part(&db, in, &ring, &to), a.part(&db, in, &kube))
		},
	}, &db, &in, &log, &watch, &ring, &to, &kube, &lim, &a, &d, &k)
}
