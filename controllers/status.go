package controllers

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

// ReasonOlderGeneration (Ready False): the store holds a newer generation of the object than the API server does, which
// happens when etcd was restored from a backup.
const ReasonOlderGeneration = "OlderGeneration"

// truth is all that a status is made of.
type truth struct {
	generation int64
	hold       hold           // why the endpoint is not Ready; zero: it is
	row        store.Endpoint // the zero row: there is none
	figures    figures
	now        time.Time
}

// describe makes the status of what is true now. Of the previous status it takes the times of transitions, conditions
// that are not ours, and counts that are not known yet; never what a condition says.
func describe(previous v1alpha1.WebhookEndpointStatus, t truth) v1alpha1.WebhookEndpointStatus {
	s := *previous.DeepCopy()
	s.ObservedGeneration = t.generation
	c := conditions{list: s.Conditions, generation: t.generation, now: t.now}
	ready := readiness(t)
	c.set(ready)
	c.set(delivering(t))
	c.hold(v1alpha1.ConditionReconciling, false, metav1.Condition{})
	c.hold(v1alpha1.ConditionStalled, stalled(ready), ready)
	s.Conditions = c.list

	s.EndpointID, s.Effective, s.SigningKeys = "", nil, nil
	if t.row.ID != 0 {
		s.EndpointID = t.row.PublicID.String()
		s.Effective = effective(t.row.Spec)
		s.SigningKeys = signingKeys(t.row.Keys)
	}
	describeFigures(&s, t.figures)
	return s
}

// describeUnavailable says that the store cannot be reached. What it said last is left standing: it is the newest that
// anybody knows.
func describeUnavailable(previous v1alpha1.WebhookEndpointStatus, generation int64, now time.Time) v1alpha1.WebhookEndpointStatus {
	s := *previous.DeepCopy()
	s.ObservedGeneration = generation
	c := conditions{list: s.Conditions, generation: generation, now: now}
	const message = "The store cannot be reached; deliveries go on as it was last told. This resumes by itself."
	c.set(metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown,
		Reason: v1alpha1.ReasonStoreUnavailable, Message: message,
	})
	c.hold(v1alpha1.ConditionReconciling, true, metav1.Condition{Reason: v1alpha1.ReasonProgressing, Message: message})
	c.hold(v1alpha1.ConditionStalled, false, metav1.Condition{})
	s.Conditions = c.list
	return s
}

// describeForbidden says that this installation lacks a right, which is tried again. Nothing else is known to be new.
func describeForbidden(previous v1alpha1.WebhookEndpointStatus, generation int64, message string, now time.Time) v1alpha1.WebhookEndpointStatus {
	s := *previous.DeepCopy()
	c := conditions{list: s.Conditions, generation: generation, now: now}
	c.hold(v1alpha1.ConditionReconciling, true, metav1.Condition{
		Reason:  v1alpha1.ReasonProgressing,
		Message: clean("The controller lacks a right, ask the platform team: "+message, maxNote),
	})
	s.Conditions = c.list
	return s
}

func readiness(t truth) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	switch {
	case t.hold != hold{}:
		c.Reason, c.Message = t.hold.Reason, t.hold.Message
	case t.figures.Gone:
		c.Reason = v1alpha1.ReasonGone
		c.Message = "The receiver answered 410 Gone, so nothing is sent any more: change the spec (for instance its url) to try again, or delete this endpoint."
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonSynced
		c.Message = "The store holds this generation, and requests are signed."
	}
	return c
}

// stalled: no retry helps until the spec changes. A Secret may be mended without that.
func stalled(ready metav1.Condition) bool {
	switch ready.Reason {
	case v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonLimitExceeded, v1alpha1.ReasonURLNotAllowed, v1alpha1.ReasonGone, ReasonOlderGeneration:
		return true
	}
	return false
}

func delivering(t truth) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionDelivering, Status: metav1.ConditionFalse}
	switch f := t.figures; {
	case t.row.Spec.State == store.Disabled:
		c.Reason, c.Message = v1alpha1.ReasonDisabled, "The spec says state: Disabled; events are not kept for this endpoint."
	case t.row.Spec.State == store.Paused || f.Pauses != pausesOver{}:
		c.Reason, c.Message = v1alpha1.ReasonPaused, whoPauses(t)
	case open(f):
		c.Reason = v1alpha1.ReasonCircuitOpen
		c.Message = "So many attempts failed that only a probe is sent now and then. The last one: " + f.LastFailure.summary()
	case f.Failures > 0:
		c.Reason, c.Message = v1alpha1.ReasonFailing, "The last attempt failed: "+f.LastFailure.summary()
	case !f.LastSuccess.IsZero():
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonSucceeding, "The last attempt succeeded."
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonNoAttempts, "Nothing was sent yet."
	}
	return c
}

// summary is short and does not change with each attempt.
func (f failure) summary() string {
	switch {
	case f.At.IsZero():
		return "nothing is known of it."
	case f.Status != 0:
		return fmt.Sprintf("%s, status %d.", f.Reason, f.Status)
	}
	return f.Reason + "."
}

func describeFigures(s *v1alpha1.WebhookEndpointStatus, f figures) {
	s.Circuit = f.Circuit
	s.ConsecutiveFailures = new(int64(f.Failures))
	s.LastSuccessTime = timestamp(f.LastSuccess)
	s.LastFailure = nil
	if l := f.LastFailure; !l.At.IsZero() {
		s.LastFailure = &v1alpha1.LastFailure{
			Time:       metav1.NewTime(l.At),
			StatusCode: int32(l.Status),
			Reason:     l.Reason,
			Message:    l.Message,
		}
		if l.EventID != uuid.Nil {
			s.LastFailure.EventID = l.EventID.String()
		}
	}
	if f.Counted {
		s.PendingCount = new(int64(f.Pending))
		s.OldestPendingTime = timestamp(f.OldestPending)
		s.DeadLetterCount = new(int64(f.DeadLetters))
	}
}

func effective(spec store.EndpointSpec) *v1alpha1.EffectiveSettings {
	return &v1alpha1.EffectiveSettings{
		Timeout:        v1alpha1.Duration(short(spec.Timeout)),
		MaxAttempts:    int32(spec.MaxAttempts),
		MaxDuration:    v1alpha1.Duration(short(spec.MaxDuration)),
		MaxConcurrency: int32(spec.MaxConcurrency),
	}
}

func signingKeys(keys []store.SealedKey) []v1alpha1.SigningKeyStatus {
	var list []v1alpha1.SigningKeyStatus
	for _, k := range keys {
		list = append(list, v1alpha1.SigningKeyStatus{Fingerprint: k.Fingerprint, ExpiresAt: timestamp(wholeSecond(k.ExpiresAt))})
	}
	return list
}

func timestamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t}
}

// conditions is a list of them in the making.
type conditions struct {
	list       []metav1.Condition
	generation int64
	now        time.Time
}

func (c *conditions) set(condition metav1.Condition) {
	condition.ObservedGeneration = c.generation
	condition.LastTransitionTime = metav1.NewTime(wholeSecond(c.now))
	meta.SetStatusCondition(&c.list, condition)
}

// hold sets a condition that is present only while it holds.
func (c *conditions) hold(kind string, holds bool, because metav1.Condition) {
	if !holds {
		meta.RemoveStatusCondition(&c.list, kind)
		return
	}
	c.set(metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: because.Reason, Message: because.Message})
}

// compareStatus says how urgent the difference of two statuses is; now are the figures that the second one shows.
func compareStatus(before, after v1alpha1.WebhookEndpointStatus, now figures) urgency {
	if equality.Semantic.DeepEqual(before, after) {
		return unchanged
	}
	if !equality.Semantic.DeepEqual(standing(before), standing(after)) {
		return material
	}
	if u := compare(shownBy(before, now), now); u != unchanged {
		return u
	}
	return material // a message says what is wrong in other words
}

// standing is a status without its figures, and without messages, which may name one of them.
func standing(s v1alpha1.WebhookEndpointStatus) v1alpha1.WebhookEndpointStatus {
	without := v1alpha1.WebhookEndpointStatus{
		ObservedGeneration: s.ObservedGeneration,
		EndpointID:         s.EndpointID,
		Effective:          s.Effective,
		SigningKeys:        s.SigningKeys,
	}
	for _, c := range s.Conditions {
		if c.Reason != v1alpha1.ReasonPaused { // who pauses is no figure
			c.Message = ""
		}
		without.Conditions = append(without.Conditions, c)
	}
	return without
}

// shownBy reads the figures back that a status shows. Whether the receiver is gone, and who pauses, are not figures of the
// status; they are taken from the figures of now.
func shownBy(s v1alpha1.WebhookEndpointStatus, now figures) figures {
	f := figures{
		Circuit:       s.Circuit,
		Gone:          now.Gone,
		Pauses:        now.Pauses,
		LastSuccess:   fromTimestamp(s.LastSuccessTime),
		OldestPending: fromTimestamp(s.OldestPendingTime),
		Counted:       s.PendingCount != nil && s.DeadLetterCount != nil,
	}
	if s.ConsecutiveFailures != nil {
		f.Failures = int(*s.ConsecutiveFailures)
	}
	if l := s.LastFailure; l != nil {
		f.LastFailure = failure{At: wholeSecond(l.Time.Time), Status: int(l.StatusCode), Reason: l.Reason, Message: l.Message}
		if id, err := uuid.Parse(l.EventID); err == nil {
			f.LastFailure.EventID = id
		}
	}
	if f.Counted {
		f.Pending, f.DeadLetters = int(*s.PendingCount), int(*s.DeadLetterCount)
	}
	if !now.Counted {
		// What is not known now is left standing in the status: no difference.
		f.Counted, f.Pending, f.OldestPending, f.DeadLetters = false, 0, time.Time{}, 0
	}
	return f
}

func fromTimestamp(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return wholeSecond(t.Time)
}
