package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WebhookEndpointStatus is what Postrider last saw of an endpoint. Absent figures are not known yet.
//
// Whatever a newer binary may extend (reasons, the circuit's states) is a bounded string and no enum: with an enum, an
// older CRD would refuse the whole status.
type WebhookEndpointStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before the first.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready and Delivering, and Reconciling and Stalled while they hold.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// endpointID is the endpoint's id in the store.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	EndpointID string `json:"endpointID,omitempty"`

	// effective is what is in force after the installation's defaults.
	// +optional
	Effective *EffectiveSettings `json:"effective,omitempty"`

	// signingKeys are the keys that sign now, the newest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	SigningKeys []SigningKeyStatus `json:"signingKeys,omitempty"`

	// lastSuccessTime is when the receiver last answered 2xx, to within a second or so.
	// +optional
	LastSuccessTime *metav1.Time `json:"lastSuccessTime,omitempty"`

	// lastFailure is the last attempt that failed.
	// +optional
	LastFailure *LastFailure `json:"lastFailure,omitempty"`

	// consecutiveFailures are the failed attempts since the last success.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ConsecutiveFailures *int64 `json:"consecutiveFailures,omitempty"`

	// pendingCount is how many deliveries wait or are in flight, exact to 10,000; 10000 stands for that many or more.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PendingCount *int64 `json:"pendingCount,omitempty"`

	// oldestPendingTime is when the event of the oldest pending delivery was accepted.
	// +optional
	OldestPendingTime *metav1.Time `json:"oldestPendingTime,omitempty"`

	// deadLetterCount is how many deliveries were given up and are kept, not counting the replayed ones.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DeadLetterCount *int64 `json:"deadLetterCount,omitempty"`

	// circuit is Closed, Open (nothing is sent) or HalfOpen (one probe is sent).
	// +optional
	Circuit CircuitState `json:"circuit,omitempty"`
}

// EffectiveSettings are settings in force after the installation's defaults.
type EffectiveSettings struct {
	// timeout of one whole request.
	// +optional
	Timeout Duration `json:"timeout,omitempty"`

	// maxAttempts is how many requests are made in all, the first one counted.
	// +optional
	MaxAttempts int32 `json:"maxAttempts,omitempty"`

	// maxDuration is how long after its acceptance a delivery is still attempted.
	// +optional
	MaxDuration Duration `json:"maxDuration,omitempty"`

	// maxConcurrency bounds the requests in flight.
	// +optional
	MaxConcurrency int32 `json:"maxConcurrency,omitempty"`
}

// SigningKeyStatus tells a signing key from others without showing a byte of it.
type SigningKeyStatus struct {
	// fingerprint is sha256: and the first eight hexadecimal digits of the key's SHA-256.
	// +required
	// +kubebuilder:validation:MaxLength=80
	Fingerprint string `json:"fingerprint,omitempty"`

	// expiresAt is when a replaced key ceases to sign. Absent: this is the current key.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
}

// LastFailure is what came of the last attempt that failed.
type LastFailure struct {
	// time of the attempt's end.
	// +required
	Time metav1.Time `json:"time,omitzero"`

	// eventID is the event that was to be delivered.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	EventID string `json:"eventID,omitempty"`

	// statusCode that the receiver answered. Absent: there was no answer.
	// +optional
	StatusCode int32 `json:"statusCode,omitempty"`

	// reason in one word, such as ServerError, Timeout or ConnectionRefused.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message says more: at most 256 characters without control characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`
}

// CircuitState says whether requests are sent to an endpoint.
//
// +kubebuilder:validation:MaxLength=32
type CircuitState string

// The states of a circuit.
const (
	// CircuitClosed sends.
	CircuitClosed CircuitState = "Closed"
	// CircuitOpen sends nothing until the cooldown is over.
	CircuitOpen CircuitState = "Open"
	// CircuitHalfOpen sends one probe, whose result closes or opens the circuit.
	CircuitHalfOpen CircuitState = "HalfOpen"
)
