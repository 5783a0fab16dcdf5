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

// byHand marks flags that have no variable.
const byHand = "by-hand"

// onlyByHand marks flags that are given on the command line or not at all: those of one command, which must not be taken
// from the settings of the pod where it is run.
func onlyByHand(flags *pflag.FlagSet, names ...string) { annotate(flags, byHand, names...) }

// annotate marks flags.
func annotate(flags *pflag.FlagSet, mark string, names ...string) {
	for _, name := range names {
		if err := flags.SetAnnotation(name, mark, []string{"true"}); err != nil {
			panic(err) // a name that no flag has: a mistake of ours
		}
	}
}

// fromEnvironment fills the flags that were not given from their variables, and reports all problems at once. A value is
// never repeated in a message: it may be a connection string.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var problems []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || f.Name == "version" || f.Annotations[byHand] != nil {
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

// fromProcess fills flags from the environment of the process.
func fromProcess(flags *pflag.FlagSet) error { return fromEnvironment(flags, os.LookupEnv) }

// commandLine has the flags that a command was given, to give them to another set too.
type commandLine map[string][]string

func commandLineOf(flags *pflag.FlagSet) commandLine {
	g := commandLine{}
	flags.Visit(func(f *pflag.Flag) {
		g[f.Name] = []string{f.Value.String()}
		if list, isList := f.Value.(pflag.SliceValue); isList {
			g[f.Name] = list.GetSlice()
		}
	})
	return g
}

func (g commandLine) restore(flags *pflag.FlagSet) error {
	var problems []error
	for name, values := range g {
		if f := flags.Lookup(name); f != nil {
			problems = append(problems, give(f, values))
		}
	}
	return errors.Join(problems...)
}

// settings are what a command is configured by: flags to declare, and a check that names each problem.
type settings interface {
	flags(*pflag.FlagSet)
	validate() error
}

func declare(flags *pflag.FlagSet, all []settings) {
	for _, s := range all {
		s.flags(flags)
	}
}

// resolve fills the flags that the command line did not give, each from the first source that has it, and checks all.
func resolve(flags *pflag.FlagSet, all []settings, sources ...func(*pflag.FlagSet) error) error {
	var problems []error
	for _, source := range sources {
		problems = append(problems, source(flags))
	}
	for _, s := range all {
		problems = append(problems, s.validate())
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("the configuration has problems:\n%s", indent(err))
	}
	return nil
}

// configure declares the flags of some settings on a command, and has them filled and checked before it runs.
func configure(c *cobra.Command, all ...settings) *cobra.Command {
	declare(c.Flags(), all)
	c.Args = cobra.NoArgs
	c.PreRunE = func(c *cobra.Command, _ []string) error { return resolve(c.Flags(), all, fromProcess) }
	return c
}

func indent(err error) string {
	return "  " + strings.ReplaceAll(err.Error(), "\n", "\n  ")
}
