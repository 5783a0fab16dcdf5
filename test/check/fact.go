package check

import "time"

// Kind says what a Fact is about.
type Kind string

// What Load writes about posts. The last fact of a post says what is known of it: after Sending or Unknown it may have been
// accepted, after Refused it was not.
const (
	Sending  Kind = "sending"  // is about to be posted for the first time
	Failed   Kind = "failed"   // one try was answered otherwise than by 202, or not at all; it is repeated with the same key
	Accepted Kind = "accepted" // 202
	Unknown  Kind = "unknown"  // given up; whether it was kept is not known
	Refused  Kind = "refused"  // an answer that says that it was not kept
)

// What Receiver writes about requests.
const (
	Arrived  Kind = "arrived"  // a request was read and verified
	Answered Kind = "answered" // it is about to be answered
)

// What the test writes about its own doings.
const (
	Disrupted Kind = "disrupted" // from At until Until something was killed, stopped or cut off, or deliveries were replayed
	Died      Kind = "died"      // a delivery became a dead letter
	// Changed: at At an endpoint was asked to be as the fact says; at Until its status said that it is. Until zero: it was so
	// before anything was posted.
	Changed Kind = "changed"
	// GaveUp: the sender's own record says that it had no answer to this attempt in the endpoint's whole timeout. The
	// receiver cannot know how long a request waited before it was read.
	GaveUp Kind = "gave-up"
)

// Fact is a line of a journal. Which fields it has depends on its kind.
type Fact struct {
	Kind Kind      `json:"kind"`
	At   time.Time `json:"at"`

	// Post names the post. It is the idempotency key, and a member of the payload.
	Post string `json:"post,omitempty"`
	// Type is the type of the event.
	Type string `json:"type,omitempty"`
	// Key is the ordering key, empty for none; Number counts the posts of a key, from 1.
	Key    string `json:"key,omitempty"`
	Number int    `json:"number,omitempty"`
	// Sum is a digest of the payload's bytes.
	Sum string `json:"sum,omitempty"`
	// Due is when the post should have begun, where that was before Sending.At because all workers were busy.
	Due time.Time `json:"due,omitzero"`

	// Event is the event's id, Endpoints are those that the answer names.
	Event     string   `json:"event,omitempty"`
	Endpoints []string `json:"endpoints,omitempty"`
	// Duplicate says that an earlier try of this post had been accepted.
	Duplicate bool `json:"duplicate,omitempty"`

	// Status is that of an answer, 0 for none. RetryAfter is its header.
	Status     int    `json:"status,omitempty"`
	RetryAfter string `json:"retry_after,omitempty"`
	// Problem says what went wrong: a broken connection, a signature that does not verify, what was disrupted.
	Problem string `json:"problem,omitempty"`

	// Call is a request at the receiver, Endpoint whom it was for, Attempt the number that the sender gave it.
	Call     string `json:"call,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Attempt  int    `json:"attempt,omitempty"`
	// Keys are the numbers, from 1, of those of the receiver's keys for the endpoint that verify the request.
	Keys []int `json:"keys,omitempty"`
	// Unheard says that the sender did not get this answer: it had gone away, or the connection is cut on purpose.
	Unheard bool `json:"unheard,omitempty"`

	// Until is the end of a disruption; zero: it was over at once. Held says that what the senders were told in that time may
	// have reached them as late as that: so long may requests have come after they were allowed.
	Until time.Time `json:"until,omitzero"`
	Held  bool      `json:"held,omitempty"`

	// What an endpoint is like: Concurrency is its maxConcurrency, Rate its requests a second, Burst what may come at once.
	// Zero: no limit. Ordered and Paused are its ordering and state.
	Concurrency int     `json:"concurrency,omitempty"`
	Rate        float64 `json:"rate,omitempty"`
	Burst       int     `json:"burst,omitempty"`
	Ordered     bool    `json:"ordered,omitempty"`
	Paused      bool    `json:"paused,omitempty"`
	// Revision numbers the versions of an endpoint's URL, of which it is a parameter: so a request tells which it was sent by.
	Revision int `json:"revision,omitempty"`
}
