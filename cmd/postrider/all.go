package main

import (
	"github.com/spf13/cobra"
)

func allCommand() *cobra.Command {
	return partsCommand("all", "Run controller, dispatcher and ingest in one process, for development", controllerRegistry,
		func(s *site) []part { return []part{&controlling{site: s}, &dispatching{site: s}, &accepting{site: s}} })
}
