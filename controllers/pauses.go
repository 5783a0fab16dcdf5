package controllers

import (
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
)

// pauses are the operators' holds in force, by the namespace they hold.
type pauses map[string]pause

// pause is an operator's hold as the status tells of it. Zero: there is none.
type pause struct {
	Since  time.Time // a whole second
	Reason string    // in the operator's words
}

// pausesOver are those that hold an endpoint.
type pausesOver struct{ Installation, Namespace pause }

// maxPauseReason is what is told of an operator's reason.
const maxPauseReason = 256

func pausesOf(told []store.Pause) pauses {
	all := pauses{}
	for _, p := range told {
		all[p.Namespace] = pause{Since: wholeSecond(p.Since), Reason: clean(p.Reason, maxPauseReason)}
	}
	return all
}

// of returns those over the endpoints of a namespace. "": of one that has no row yet, which nobody need hold.
func (p pauses) of(namespace string) pausesOver {
	if namespace == "" {
		return pausesOver{}
	}
	return pausesOver{Installation: p[store.WholeInstallation], Namespace: p[namespace]}
}

// whoPauses says who holds an endpoint, and what lifts the hold: each of them, since lifting one does not lift another.
func whoPauses(t truth) string {
	var holds []string
	if p := t.figures.Pauses.Installation; p != (pause{}) {
		holds = append(holds, p.by("all sending of this installation", "postrider resume"))
	}
	if p := t.figures.Pauses.Namespace; p != (pause{}) {
		holds = append(holds, p.by("namespace "+t.row.Namespace, "postrider resume --namespace "+t.row.Namespace))
	}
	if t.row.Spec.State == store.Paused {
		holds = append(holds, "The spec says state: Paused.")
	}
	return strings.Join(holds, " ") + " Events wait and do not expire."
}

func (p pause) by(what, remedy string) string {
	because := ""
	if p.Reason != "" {
		because = ": " + strings.TrimRight(p.Reason, ".")
	}
	return fmt.Sprintf("An operator has paused %s since %s%s. `%s` ends that.", what, p.Since.Format(time.RFC3339), because, remedy)
}
