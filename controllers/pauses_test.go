package controllers

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

func pausedBy(over pausesOver) func(*truth) {
	return func(t *truth) { t.row.Namespace, t.figures.Pauses = "billing", over }
}

var (
	installationPaused = pausesOver{Installation: pause{Since: noon, Reason: "restored from a backup."}}
	namespacePaused    = pausesOver{Namespace: pause{Since: noon}}
)

func TestTheStatusSaysWhoPauses(t *testing.T) {
	t.Parallel()
	since := noon.Format(time.RFC3339)
	for name, test := range map[string]struct {
		truth truth
		want  string
	}{
		"the installation": {
			truthOf(succeeded, pausedBy(installationPaused)),
			"An operator has paused all sending of this installation since " + since + ": restored from a backup. `postrider resume` ends that. Events wait and do not expire.",
		},
		"the namespace, without a reason, behind an open circuit": {
			truthOf(failed(503, "ServerError"), circuitIs(v1alpha1.CircuitOpen), pausedBy(namespacePaused)),
			"An operator has paused namespace billing since " + since + ". `postrider resume --namespace billing` ends that. Events wait and do not expire.",
		},
		"the namespace and the spec": {
			truthOf(stateIs(store.Paused), pausedBy(namespacePaused)),
			"An operator has paused namespace billing since " + since + ". `postrider resume --namespace billing` ends that. The spec says state: Paused. Events wait and do not expire.",
		},
		"the spec": {truthOf(stateIs(store.Paused)), "The spec says state: Paused. Events wait and do not expire."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := describe(v1alpha1.WebhookEndpointStatus{ObservedGeneration: -1}, test.truth)
			c := conditionOf(s, v1alpha1.ConditionDelivering)
			if c.Status != "False" || c.Reason != "Paused" || c.Message != test.want {
				t.Errorf("got %s/%s, %s\nwant %s", c.Status, c.Reason, c.Message, test.want)
			}
			if ready := conditionOf(s, v1alpha1.ConditionReady); ready.Status != "True" {
				t.Errorf("a pause is no matter of Ready, which is %s/%s", ready.Status, ready.Reason)
			}
		})
	}
	s := describe(v1alpha1.WebhookEndpointStatus{}, truthOf(stateIs(store.Disabled), pausedBy(installationPaused)))
	if c := conditionOf(s, v1alpha1.ConditionDelivering); c.Reason != v1alpha1.ReasonDisabled {
		t.Errorf("disabled and paused: got %s, want Disabled", c.Reason)
	}
}

func TestAPauseIsMaterial(t *testing.T) {
	t.Parallel()
	of := func(alter ...func(*truth)) (v1alpha1.WebhookEndpointStatus, figures) {
		truth := truthOf(alter...)
		return describe(v1alpha1.WebhookEndpointStatus{}, truth), truth.figures
	}
	free, freely := of(succeeded)
	paused, now := of(succeeded, pausedBy(installationPaused))
	again, other := of(func(t *truth) { t.figures.LastSuccess = noon.Add(time.Second) },
		pausedBy(pausesOver{Installation: pause{Since: noon, Reason: "for another reason"}}))
	for name, got := range map[string]urgency{
		"paused":                          compareStatus(free, paused, now),
		"resumed":                         compareStatus(paused, free, freely),
		"for another reason":              compareStatus(paused, again, other),
		"paused, as the feed sees it":     compare(freely, now),
		"its reason, as the feed sees it": compare(now, other),
	} {
		if got != material {
			t.Errorf("%s: got %s, want material", name, got)
		}
	}
	if got := compareStatus(paused, paused, now); got != unchanged {
		t.Errorf("while it lasts: got %s, want unchanged", got)
	}
}

func TestAPauseIsAnnouncedOnce(t *testing.T) {
	t.Parallel()
	of := func(alter ...func(*truth)) v1alpha1.WebhookEndpointStatus {
		return describe(v1alpha1.WebhookEndpointStatus{}, truthOf(alter...))
	}
	both := pausesOver{Installation: installationPaused.Installation, Namespace: namespacePaused.Namespace}
	for name, test := range map[string]struct {
		before, after v1alpha1.WebhookEndpointStatus
		want          string
	}{
		"paused":               {of(), of(pausedBy(namespacePaused)), "Normal/Paused"},
		"by a second one":      {of(pausedBy(namespacePaused)), of(pausedBy(both)), ""},
		"resumed by one":       {of(pausedBy(both)), of(pausedBy(namespacePaused)), ""},
		"resumed":              {of(pausedBy(namespacePaused)), of(), "Normal/Resumed"},
		"resumed, and failing": {of(pausedBy(namespacePaused)), of(failed(503, "ServerError")), "Normal/Resumed"},
		"by its spec":          {of(), of(stateIs(store.Paused)), "Normal/Paused"},
		"disabled instead":     {of(stateIs(store.Paused)), of(stateIs(store.Disabled)), ""},
	} {
		var words []string
		for _, a := range announcements(test.before, test.after) {
			words = append(words, a.kind+"/"+a.reason)
		}
		if got := strings.Join(words, " "); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// pause replaces the pauses that the store tells of.
func (s *quietStore) pause(all ...store.Pause) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.pauses = all
}

// All statuses follow, within the budget of material changes, and then rest.
func TestEveryStatusFollowsAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		d := newDesk(t.Context(), t, n)
		d.run(t, 10*time.Second)
		d.show(n)
		for step, pauses := range [][]store.Pause{
			{{Since: time.Now(), Reason: "an incident"}},
			{{Since: time.Now(), Reason: "an incident"}, {Namespace: "n", Since: time.Now()}},
			{{Namespace: "n", Since: time.Now()}},
			nil,
		} {
			d.writes = map[int64][]time.Time{}
			d.store.pause(pauses...)
			d.run(t, 10*time.Second)
			if len(d.writes) != n || d.written() != n {
				t.Errorf("step %d: %d writes of %d statuses, want one of each of %d", step, d.written(), len(d.writes), n)
			}
		}
		d.writes = map[int64][]time.Time{}
		d.store.pause(store.Pause{Namespace: "another", Since: time.Now()})
		d.run(t, time.Minute)
		if d.written() != 0 {
			t.Errorf("%d statuses were written for the pause of another namespace", d.written())
		}
	})
}

func TestThePauseOfANamespaceIsShownWhileItLasts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.putSecret("signing", "signing-key", w.secretValue())
	w.start()
	w.create("ledger")
	w.awaitConditions("ledger", ready+" Delivering=True/NoAttempts")
	_, err := w.store.Pause(patience(t), w.namespace, "a test")
	w.must(err)
	e := w.awaitConditions("ledger", ready+" Delivering=False/Paused")
	if message := conditionOf(e.Status, v1alpha1.ConditionDelivering).Message; !strings.Contains(message, "a test") || !strings.Contains(message, "postrider resume --namespace "+w.namespace) {
		t.Errorf("the message is %q", message)
	}
	// One that comes meanwhile shows it from the beginning.
	w.create("late")
	w.awaitConditions("late", ready+" Delivering=False/Paused")
	_, err = w.store.Resume(patience(t), w.namespace)
	w.must(err)
	w.awaitConditions("ledger", ready+" Delivering=True/NoAttempts")
	eventually(t, 30*time.Second, func() error {
		var list eventsv1.EventList
		if err := w.client.List(patience(t), &list, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		told := map[string]int{}
		for _, event := range list.Items {
			if event.Regarding.Name == "ledger" {
				told[event.Reason]++
			}
		}
		if told["Paused"] != 1 || told["Resumed"] != 1 {
			return fmt.Errorf("Events %v, want Paused and Resumed", told)
		}
		return nil
	})
}
