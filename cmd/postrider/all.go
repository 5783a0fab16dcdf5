package main

import (
	"github.com/spf13/cobra"
)

func allCommand() *cobra.Command {
	var s site
	return partsCommand("all", "Run controller, dispatcher and ingest in one process, for development", &s, controllerRegistry,
		&controlling{site: &s}, &dispatching{site: &s}, &accepting{})
}
