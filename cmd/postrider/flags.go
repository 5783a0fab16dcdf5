package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// variable returns the environment variable that stands for a flag.
func variable(flag string) string {
	return "POSTRIDER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment fills the flags that were not given from their variables, and reports all problems at once. A value is
// never repeated in a message: it may be a connection string.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var problems []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || f.Name == "version" {
			return
		}
		value, ok := lookup(variable(f.Name))
		if !ok || value == "" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: the value is no %s; see --%s in `postrider --help`", variable(f.Name), f.Value.Type(), f.Name))
		}
	})
	return errors.Join(problems...)
}

// settings are what a command is configured by: flags to declare, and a check that names each problem.
type settings interface {
	flags(*pflag.FlagSet)
	validate() error
}

// configure declares the flags of some settings on a command, and has them filled and checked before it runs.
func configure(c *cobra.Command, all ...settings) *cobra.Command {
	for _, s := range all {
		s.flags(c.Flags())
	}
	c.Args = cobra.NoArgs
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		problems := []error{fromEnvironment(c.Flags(), os.LookupEnv)}
		for _, s := range all {
			problems = append(problems, s.validate())
		}
		if err := errors.Join(problems...); err != nil {
			return fmt.Errorf("the configuration has problems:\n%s", indent(err))
		}
		return nil
	}
	return c
}

func indent(err error) string {
	return "  " + strings.ReplaceAll(err.Error(), "\n", "\n  ")
}
