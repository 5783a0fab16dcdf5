package dispatcher

// Reason says in one word why an attempt failed or why a delivery was given up. Reasons stand in attempts, dead letters,
// an endpoint's status, logs and metrics; what a name means never changes.
type Reason string

// Why an attempt failed, when the receiver answered.
const (
	ServerError     Reason = "ServerError"     // 5xx
	RequestTimeout  Reason = "RequestTimeout"  // 408
	TooEarly        Reason = "TooEarly"        // 425
	TooManyRequests Reason = "TooManyRequests" // 429
	Redirect        Reason = "Redirect"        // 3xx; never followed
	Rejected        Reason = "Rejected"        // another 4xx; also of the dead letter
	Gone            Reason = "Gone"            // 410; also of the dead letter
)

// Why an attempt failed, when there was no answer or no whole one.
const (
	Timeout               Reason = "Timeout"               // the endpoint's timeout ran out, wherever the request was
	DNSNotFound           Reason = "DNSNotFound"           // the host does not exist
	DNSFailure            Reason = "DNSFailure"            // the host could not be looked up
	DestinationNotAllowed Reason = "DestinationNotAllowed" // the destination policy refused; nothing was connected
	ConnectionRefused     Reason = "ConnectionRefused"     // nobody listens
	HostUnreachable       Reason = "HostUnreachable"       // no way to the host or its network
	ConnectionReset       Reason = "ConnectionReset"       // reset after the request, or its HTTP/2 stream was
	ConnectionClosed      Reason = "ConnectionClosed"      // closed without an answer
	ConnectionFailed      Reason = "ConnectionFailed"      // another failure of the network
	GoAway                Reason = "GoAway"                // HTTP/2 GOAWAY
	TLSFailure            Reason = "TLSFailure"            // handshake or certificate
	TruncatedResponse     Reason = "TruncatedResponse"     // the answer ended in its middle
	InvalidResponse       Reason = "InvalidResponse"       // the answer is not HTTP
	LeaseEnding           Reason = "LeaseEnding"           // abandoned, since the claim was about to end
)

// Why nothing was sent although it was due. It is nobody's failure to receive, so it spends no attempt and no circuit.
const (
	SigningKeyUnavailable Reason = "SigningKeyUnavailable" // a signing key cannot be decrypted, or there is none
	HeadersUnavailable    Reason = "HeadersUnavailable"    // the endpoint's headers cannot be decrypted
	EndpointMissing       Reason = "EndpointMissing"       // the endpoint's row is not there
)

// Why a delivery was given up, beside Rejected and Gone.
const (
	AttemptsExhausted Reason = "AttemptsExhausted" // the last of its attempts failed
	Expired           Reason = "Expired"           // another attempt would come after maxDuration
	BodyLost          Reason = "BodyLost"          // the event is no longer in the database
)

// reasonsOfFailure are those that the metric of failed attempts tells apart.
var reasonsOfFailure = []Reason{
	ServerError, RequestTimeout, TooEarly, TooManyRequests, Redirect, Rejected, Gone,
	Timeout, DNSNotFound, DNSFailure, DestinationNotAllowed, ConnectionRefused, HostUnreachable, ConnectionReset,
	ConnectionClosed, ConnectionFailed, GoAway, TLSFailure, TruncatedResponse, InvalidResponse, LeaseEnding,
	SigningKeyUnavailable, HeadersUnavailable, EndpointMissing, BodyLost,
}
