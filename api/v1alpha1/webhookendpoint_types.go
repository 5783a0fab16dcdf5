package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultSigningSecretKey is the entry of the signing Secret that is read where secretRef.key is absent.
const DefaultSigningSecretKey = "signing-key"

// EventTypePattern says which event types are wanted. It is a type (dot-separated segments of letters, digits, _ and -)
// in which a segment may be *: in the middle it stands for one segment, at the end for one or more, and alone for every
// type. invoice.* matches invoice.paid and invoice.payment.failed, but neither invoice nor invoices.paid. Matching is
// case-sensitive.
//
// +kubebuilder:validation:MaxLength=128
// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([A-Za-z0-9_-]+|\*)(\.([A-Za-z0-9_-]+|\*))*$')`,message="must be segments of letters, digits, _ and - joined by dots, where * stands for a whole segment: invoice.paid, invoice.*, or * for every type"
type EventTypePattern string

// EndpointState says whether events are accepted for an endpoint and whether they are sent.
//
// +kubebuilder:validation:Enum=Enabled;Paused;Disabled
type EndpointState string

// The states of an endpoint. An absent state is Enabled.
const (
	// StateEnabled accepts events and sends them.
	StateEnabled EndpointState = "Enabled"
	// StatePaused accepts events, which wait: nothing is sent and nothing expires.
	StatePaused EndpointState = "Paused"
	// StateDisabled accepts nothing new, and cancels what was pending.
	StateDisabled EndpointState = "Disabled"
)

// SigningScheme says how requests are signed.
//
// +kubebuilder:validation:Enum=StandardWebhooks
type SigningScheme string

// SigningSchemeStandardWebhooks is HMAC-SHA256 as https://www.standardwebhooks.com specifies it. An absent scheme is this one.
const SigningSchemeStandardWebhooks SigningScheme = "StandardWebhooks"

// Ordering says whether deliveries of one ordering key keep their order.
//
// +kubebuilder:validation:Enum=None;Key
type Ordering string

// The orderings. An absent one is None.
const (
	// OrderingNone promises no order.
	OrderingNone Ordering = "None"
	// OrderingKey delivers events with the same ordering key in the order in which they were accepted, one at a time.
	OrderingKey Ordering = "Key"
)

// PayloadFormat says what the request body is.
//
// +kubebuilder:validation:Enum=Raw
type PayloadFormat string

// PayloadRaw sends the bytes that the producer posted. An absent format is this one.
const PayloadRaw PayloadFormat = "Raw"

// WebhookEndpointSpec says where the events of this namespace go. Nothing in it is defaulted by the API server: an absent
// optional field means the installation's default, so that what the user wrote is never rewritten.
type WebhookEndpointSpec struct {
	// url receives the events by POST. It is an absolute http or https URL with a host, without user, password or fragment.
	// Which addresses may be reached is the installation's policy, judged when connecting.
	// +required
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule=`self.contains('#') || isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''`,message="must be an absolute http or https URL with a host, such as https://hooks.example.com/invoices"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('^[^/]+//[^/?#]*@')`,message="must not carry a user or password: remove what stands before the @, receivers authenticate requests by their signature"
	// +kubebuilder:validation:XValidation:rule=`!self.contains('#')`,message="must not carry a fragment, which is never sent: remove the # and what follows it"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('^[^/]+//[^/?#]*:[0-9]{6,}([/?#]|$)') && (!isURL(self) || url(self).getPort() == '' || int(url(self).getPort()) >= 1 && int(url(self).getPort()) <= 65535)`,message="must have a port from 1 to 65535, or none for the one of its scheme"
	URL string `json:"url"`

	// eventTypes are the patterns of which at least one must match an event's type for it to be delivered here.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	EventTypes []EventTypePattern `json:"eventTypes"`

	// state is Enabled, Paused (events wait, nothing is sent, nothing expires) or Disabled (events are not kept for this
	// endpoint, pending ones are cancelled). Absent: Enabled.
	// +optional
	State EndpointState `json:"state,omitempty"`

	// signing says with which key requests are signed.
	// +required
	Signing Signing `json:"signing"`

	// timeout bounds one whole request: DNS, connect, TLS, send, read. 1s to 30s. Absent: the installation's default, 10s.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('30s')`,message="must be a duration from 1s to 30s: whole numbers with the units h, m, s or ms, such as 10s or 1s500ms"
	Timeout Duration `json:"timeout,omitempty"`

	// maxConcurrency bounds the requests in flight to this endpoint, over all replicas together. Absent: the installation's
	// default, 16.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxConcurrency int32 `json:"maxConcurrency,omitempty"`

	// rateLimit bounds the requests in a time, over all replicas together. Absent: no limit.
	// +optional
	RateLimit *RateLimit `json:"rateLimit,omitempty"`

	// ordering is None, or Key: events posted with the same ordering key are delivered in the order in which they were
	// accepted, one at a time, and a key that fails waits alone. Absent: None.
	// +optional
	Ordering Ordering `json:"ordering,omitempty"`

	// payload is Raw: the body is the bytes that the producer posted. Absent: Raw.
	// +optional
	Payload PayloadFormat `json:"payload,omitempty"`

	// headers are added to each request. Their values are readable by all who may read this object: no secrets here.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule=`self.all(h, !self.exists(other, other.name != h.name && other.name.lowerAscii() == h.name.lowerAscii()))`,message="must not name a header twice, in whatever case: keep one of them"
	Headers []Header `json:"headers,omitempty"`

	// retry says when a failed delivery is attempted again and when it is given up. Absent: the installation's default.
	// +optional
	Retry *Retry `json:"retry,omitempty"`

	// circuitBreaker says when an endpoint that only fails is left alone for a while. Absent: the installation's default.
	// +optional
	CircuitBreaker *CircuitBreaker `json:"circuitBreaker,omitempty"`
}

// Signing says with which key requests are signed.
type Signing struct {
	// secretRef names the Secret, in this namespace, that holds the signing key: whsec_ followed by standard base64, or at
	// least 24 raw bytes.
	// +required
	SecretRef SecretKeyReference `json:"secretRef"`

	// rotationWindow is how long a replaced key still signs beside the new one, so that receivers can change over. 0s to
	// 168h. Absent: the installation's default, 24h.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) <= duration('168h')`,message="must be a duration from 0s to 168h: whole numbers with the units h, m, s or ms, such as 24h for a day"
	RotationWindow Duration `json:"rotationWindow,omitempty"`

	// scheme is StandardWebhooks. Absent: StandardWebhooks.
	// +optional
	Scheme SigningScheme `json:"scheme,omitempty"`
}

// SecretKeyReference names an entry of a Secret in the endpoint's namespace.
type SecretKeyReference struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')`,message="must be the name of a Secret in this namespace: lower-case letters, digits, - and ., beginning and ending with a letter or digit"
	Name string `json:"name"`

	// key is the entry of the Secret. Absent: signing-key.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[-._a-zA-Z0-9]+$')`,message="must be an entry of the Secret: letters, digits, -, _ and .; leave it out for signing-key"
	Key string `json:"key,omitempty"`
}

// RateLimit bounds the requests in a time: a bucket of burst tokens that fills with requests tokens per time.
type RateLimit struct {
	// requests that may be made in each time of per.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Requests int32 `json:"requests,omitempty"`

	// per is the time in which requests may be made. 1s to 1h. Absent: 1s.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('1h')`,message="must be a duration from 1s to 1h: whole numbers with the units h, m, s or ms, such as 1s or 1m"
	Per Duration `json:"per,omitempty"`

	// burst is how many requests may be made at once after a quiet time. Absent: as many as requests.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Burst int32 `json:"burst,omitempty"`
}

// Header is a header added to each request.
type Header struct {
	// name of the header, in any case. Those that Postrider or HTTP itself sets cannot be given.
	// +required
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[!#$%&\x27*+.^_\x60|~0-9A-Za-z-]+$')`,message="must be a header name: letters, digits and - without spaces or colons, such as X-Team"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('(?i)^(webhook-(id|timestamp|signature)|postrider-.*|traceparent|tracestate|user-agent|content-type|content-encoding|content-length|accept-encoding|host|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect|http2-settings|proxy-.*)$')`,message="is set by Postrider or by HTTP itself and cannot be given: remove it or choose another name, such as one beginning with X-"
	Name string `json:"name,omitempty"`

	// value of the header: printable ASCII (RFC 9110, section 5.5), spaces and tabs inside.
	// +required
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[!-~]([ \t!-~]*[!-~])?$')`,message="must be printable ASCII without line breaks, control characters or spaces around it: encode anything else, for instance with base64"
	Value string `json:"value,omitempty"`
}

// Retry says when a failed delivery is attempted again and when it is given up: at maxAttempts or maxDuration, whichever
// comes first.
//
// +kubebuilder:validation:XValidation:rule=`!(has(self.backoff) && has(self.schedule))`,message="has both backoff and schedule: keep one of them and remove the other"
type Retry struct {
	// maxAttempts is how many requests are made in all, the first one counted. 1 to 100. Absent: the length of schedule and
	// one more where there is a schedule, else the installation's default, 12.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxAttempts int32 `json:"maxAttempts,omitempty"`

	// maxDuration is how long after its acceptance a delivery is still attempted; time spent paused or not ready does not
	// count. 0s to 168h; 0s means one attempt. Absent: the installation's default, 24h.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) <= duration('168h')`,message="must be a duration from 0s to 168h: whole numbers with the units h, m, s or ms, such as 24h for a day"
	MaxDuration Duration `json:"maxDuration,omitempty"`

	// backoff makes the delays grow. Not together with schedule. Absent, and no schedule: the installation's default.
	// +optional
	Backoff *Backoff `json:"backoff,omitempty"`

	// schedule gives the delay before each retry, jittered by a fifth up or down; the last one repeats while attempts
	// remain. Each 100ms to 168h. Not together with backoff.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=99
	// +kubebuilder:validation:items:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) >= duration('100ms') && duration(self) <= duration('168h')`,message="must be a duration from 100ms to 168h: whole numbers with the units h, m, s or ms, such as 5s, or 24h for a day"
	Schedule []Duration `json:"schedule,omitempty"`
}

// Backoff makes delays grow: the delay before the nth retry is drawn uniformly from 0 to base · factorⁿ⁻¹, or to cap where
// that is less (full jitter).
//
// +kubebuilder:validation:XValidation:rule=`!has(self.base) || !has(self.cap) || [self.base, self.cap].exists(d, !d.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$')) || duration(self.base) <= duration(self.cap)`,message="has a base above its cap: lower base or raise cap"
type Backoff struct {
	// base bounds the delay before the first retry. 100ms to 168h. Absent: the installation's default, 10s.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) >= duration('100ms') && duration(self) <= duration('168h')`,message="must be a duration from 100ms to 168h: whole numbers with the units h, m, s or ms, such as 10s"
	Base Duration `json:"base,omitempty"`

	// factor by which the bound grows with each retry, a whole number from 1 to 10. Absent: the installation's default, 2.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10
	Factor int32 `json:"factor,omitempty"`

	// cap is what the bound never exceeds. 100ms to 168h. Absent: the installation's default, 6h.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) >= duration('100ms') && duration(self) <= duration('168h')`,message="must be a duration from 100ms to 168h: whole numbers with the units h, m, s or ms, such as 6h"
	Cap Duration `json:"cap,omitempty"`
}

// CircuitBreaker says when an endpoint that only fails is left alone for a while.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.cooldown) || !has(self.maxCooldown) || [self.cooldown, self.maxCooldown].exists(d, !d.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$')) || duration(self.cooldown) <= duration(self.maxCooldown)`,message="has a cooldown above its maxCooldown: lower cooldown or raise maxCooldown"
type CircuitBreaker struct {
	// failureThreshold is how many consecutive retryable failures open the circuit. 1 to 1000. Absent: the installation's
	// default, 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	FailureThreshold int32 `json:"failureThreshold,omitempty"`

	// cooldown is how long nothing is sent after the circuit opened; then one probe goes. 1s to 24h. Absent: the
	// installation's default, 30s.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')`,message="must be a duration from 1s to 24h: whole numbers with the units h, m, s or ms, such as 30s"
	Cooldown Duration `json:"cooldown,omitempty"`

	// maxCooldown bounds the cooldown, which doubles with each failed probe. 1s to 24h. Absent: the installation's default,
	// 10m.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')`,message="must be a duration from 1s to 24h: whole numbers with the units h, m, s or ms, such as 10m"
	MaxCooldown Duration `json:"maxCooldown,omitempty"`
}

// WebhookEndpoint says where the events of its namespace go, how they are signed, and what happens when that fails.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=whe,categories=postrider
// +kubebuilder:printcolumn:name="URL",type=string,JSONPath=`.spec.url`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Last Success",type=date,JSONPath=`.status.lastSuccessTime`
// +kubebuilder:printcolumn:name="Pending",type=integer,JSONPath=`.status.pendingCount`
// +kubebuilder:printcolumn:name="Dead",type=integer,JSONPath=`.status.deadLetterCount`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Circuit",type=string,priority=1,JSONPath=`.status.circuit`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
type WebhookEndpoint struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec says where the events of this namespace go.
	// +required
	Spec WebhookEndpointSpec `json:"spec"`

	// status is what Postrider last saw; it is no older than the installation's status interval.
	// +optional
	// +kubebuilder:default={observedGeneration:-1}
	Status WebhookEndpointStatus `json:"status,omitzero"`
}

// WebhookEndpointList is a list of WebhookEndpoint.
//
// +kubebuilder:object:root=true
type WebhookEndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`
	Items           []WebhookEndpoint `json:"items"`
}
