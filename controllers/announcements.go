package controllers

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
)

// Reasons of Kubernetes Events that are no reasons of conditions.
const (
	eventCircuitClosed     = "CircuitClosed"
	eventResumed           = "Resumed"
	eventDeadLetters       = "DeadLetters"
	eventSigningKeyRotated = "SigningKeyRotated"
)

// maxNote is what the API server accepts as the note of an Event, in bytes.
const maxNote = 1024

// announcement is a Kubernetes Event to be.
type announcement struct{ kind, reason, note string }

// announcements are what a change of a status is worth an Event for: transitions, never figures that move. The store's
// being away is none of the endpoint's business: metrics and logs tell of it once, not once an endpoint.
func announcements(before, after v1alpha1.WebhookEndpointStatus) []announcement {
	var list []announcement
	was, is := conditionOf(before, v1alpha1.ConditionReady), conditionOf(after, v1alpha1.ConditionReady)
	if is.Status != metav1.ConditionUnknown && was.Status != metav1.ConditionUnknown && was.Reason != is.Reason {
		list = append(list, announcement{kindOf(is), is.Reason, is.Message})
	}
	switch wasOpen, isOpen := opened(before), opened(after); {
	case isOpen && !wasOpen:
		list = append(list, announcement{corev1.EventTypeWarning, v1alpha1.ReasonCircuitOpen, conditionOf(after, v1alpha1.ConditionDelivering).Message})
	case wasOpen && !isOpen:
		list = append(list, announcement{corev1.EventTypeNormal, eventCircuitClosed, "Deliveries are sent again."})
	}
	was, is = conditionOf(before, v1alpha1.ConditionDelivering), conditionOf(after, v1alpha1.ConditionDelivering)
	switch wasPaused, isPaused := was.Reason == v1alpha1.ReasonPaused, is.Reason == v1alpha1.ReasonPaused; {
	case isPaused && !wasPaused:
		list = append(list, announcement{corev1.EventTypeNormal, v1alpha1.ReasonPaused, is.Message})
	case wasPaused && !isPaused && is.Reason != v1alpha1.ReasonDisabled:
		list = append(list, announcement{corev1.EventTypeNormal, eventResumed, "Nobody pauses this endpoint any more; what waited is sent."})
	}
	if before.DeadLetterCount != nil && *before.DeadLetterCount == 0 && after.DeadLetterCount != nil && *after.DeadLetterCount > 0 {
		list = append(list, announcement{corev1.EventTypeWarning, eventDeadLetters, "The first delivery since there was none was given up; it is kept until retention and can be replayed."})
	}
	if len(before.SigningKeys) > 0 && len(after.SigningKeys) > 0 && before.SigningKeys[0].Fingerprint != after.SigningKeys[0].Fingerprint {
		list = append(list, announcement{corev1.EventTypeNormal, eventSigningKeyRotated, fmt.Sprintf(
			"Requests are signed with key %s; %d older keys sign beside it until their time is over.", after.SigningKeys[0].Fingerprint, len(after.SigningKeys)-1)})
	}
	for i := range list {
		list[i].note = cut(list[i].note, maxNote)
	}
	return list
}

func conditionOf(s v1alpha1.WebhookEndpointStatus, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func kindOf(c metav1.Condition) string {
	if c.Status == metav1.ConditionTrue {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

func opened(s v1alpha1.WebhookEndpointStatus) bool {
	return s.Circuit != "" && s.Circuit != v1alpha1.CircuitClosed
}

// cut shortens a text to a number of bytes, between two characters.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const more = "…"
	end := limit - len(more)
	for end > 0 && text[end]&0xC0 == 0x80 { // inside a character
		end--
	}
	return text[:end] + more
}
