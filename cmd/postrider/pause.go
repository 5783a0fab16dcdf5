package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/postrider/postrider/store"
)

// maxReason bounds the reason of a pause, in characters: each endpoint's status repeats it.
const maxReason = 256

// scope says what a pause holds. Its flags are for the command line alone: in the pods where the command runs, the variable
// of --namespace names that of the release.
type scope struct {
	namespace string
	timeout   time.Duration
	given     *pflag.FlagSet
}

func (s *scope) flags(f *pflag.FlagSet) {
	s.given = f
	f.StringVar(&s.namespace, "namespace", "", "the one namespace that is meant (default: the whole installation)")
	f.DurationVar(&s.timeout, "timeout", 2*time.Minute, "how long to go on trying")
	onlyByHand(f, "namespace", "timeout")
}

func (s *scope) validate() error {
	var problems []error
	// An empty one may come from a variable of a script that is not set, and must not stop everything.
	if s.given.Changed("namespace") {
		for _, problem := range validation.IsDNS1123Label(s.namespace) {
			problems = append(problems, fmt.Errorf("--namespace: %q names no namespace: %s", s.namespace, problem))
		}
	}
	if s.timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout: %s is not above 0", s.timeout))
	}
	return errors.Join(problems...)
}

type pausing struct {
	reason string
	show   bool
	of     *scope
}

func (p *pausing) flags(f *pflag.FlagSet) {
	f.StringVar(&p.reason, "reason", "", "told in the status of every endpoint that is held, at most 256 characters")
	f.BoolVar(&p.show, "show", false, "list what is paused, and change nothing")
	onlyByHand(f, "reason", "show")
}

func (p *pausing) validate() error {
	problems := []error{printable("reason", p.reason)}
	if p.show && (p.reason != "" || p.of.namespace != "") {
		problems = append(problems, errors.New("--show: changes nothing; leave out --namespace and --reason"))
	}
	return errors.Join(problems...)
}

// printable reports what keeps a text of an operator's from being shown in a status.
func printable(flag, text string) error {
	switch n := utf8.RuneCountInString(text); {
	case n > maxReason:
		return fmt.Errorf("--%s: has %d characters, more than %d", flag, n, maxReason)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("--%s: has characters that cannot be printed; give one line of text", flag)
	}
	return nil
}

func pauseCommand() *cobra.Command {
	var d database
	var l logging
	var s scope
	p := pausing{of: &s}
	return configure(&cobra.Command{
		Use:   "pause",
		Short: "Hold all sending of the installation, or of a namespace, until `postrider resume`",
		RunE: func(c *cobra.Command, _ []string) error {
			return withStore(c, &d, &l, s.timeout, func(ctx context.Context, db *store.Store) error {
				if p.show {
					return showPauses(ctx, c.OutOrStdout(), db, "nothing is paused")
				}
				return p.pause(ctx, c.OutOrStdout(), db)
			})
		},
	}, &d, &l, &s, &p)
}

func (p *pausing) pause(ctx context.Context, out io.Writer, db *store.Store) error {
	made, err := db.Pause(ctx, p.of.namespace, p.reason)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, sentence(made)); err != nil || p.of.namespace == "" {
		return err
	}
	// Perhaps another one was meant.
	if m, err := db.Matching(ctx, p.of.namespace); err == nil && len(m.Endpoints) == 0 {
		_, err = fmt.Fprintf(out, "namespace %s has no endpoints that get events; those that come are held too\n", p.of.namespace)
		return err
	}
	return nil
}

func resumeCommand() *cobra.Command {
	var d database
	var l logging
	var s scope
	return configure(&cobra.Command{
		Use:   "resume",
		Short: "End a pause of the installation, or of a namespace",
		RunE: func(c *cobra.Command, _ []string) error {
			return withStore(c, &d, &l, s.timeout, func(ctx context.Context, db *store.Store) error {
				was, err := db.Resume(ctx, s.namespace)
				if err != nil {
					return err
				}
				text := "is resumed"
				if !was {
					text = "was not paused"
				}
				if _, err := fmt.Fprintln(c.OutOrStdout(), what(s.namespace), text); err != nil {
					return err
				}
				return showPauses(ctx, c.OutOrStdout(), db, "")
			})
		},
	}, &d, &l, &s)
}

// withStore opens the store for one command.
func withStore(c *cobra.Command, d *database, l *logging, timeout time.Duration, run func(context.Context, *store.Store) error) error {
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	db, err := d.open(ctx, l.logger(c.Name()), newSchemaWatch(), c.Name())
	if err != nil {
		return explain(err)
	}
	defer db.Close()
	return explain(run(ctx, db))
}

// showPauses lists those in force, or says something else if there are none.
func showPauses(ctx context.Context, out io.Writer, db *store.Store, none string) error {
	pauses, err := db.Pauses(ctx)
	if err != nil {
		return err
	}
	var lines []string
	for _, p := range pauses {
		lines = append(lines, sentence(p))
	}
	if len(lines) == 0 && none != "" {
		lines = append(lines, none)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

func sentence(p store.Pause) string {
	text := what(p.Namespace) + " is paused since " + p.Since.UTC().Format(time.RFC3339)
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	return text
}

func what(namespace string) string {
	if namespace == store.WholeInstallation {
		return "the installation"
	}
	return "namespace " + namespace
}

// explain tells what to do about a command that another one overtook, or that was cut short.
func explain(err error) error {
	switch {
	case errors.Is(err, store.ErrConflict):
		return fmt.Errorf("%w: another command has paused or resumed it; see `postrider pause --show`", err)
	case errors.Is(err, context.Canceled): // no quiet end, as it would be for a part
		return errors.New("interrupted: it may be done in part or not at all; give the command again")
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: it may be done in part or not at all; give the command again", err)
	}
	return err
}
