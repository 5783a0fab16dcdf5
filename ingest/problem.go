package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A problem is an answer other than success, as RFC 9457 (problem details) writes it. It never carries a stack trace,
// SQL, a credential or a posted value.
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Errors    []fieldError `json:"errors,omitempty"`
	RequestID string       `json:"request_id"`

	header map[string]string
	reason string // for the log and the metric: a word of ours
	cause  error  // for the log alone
}

// A fieldError says what is wrong with one field, and what would be right.
type fieldError struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

func (p *problem) Error() string { return fmt.Sprintf("%d %s: %s", p.Status, p.Title, p.Detail) }
func (p *problem) Unwrap() error { return p.cause }

// problemBase prefixes the slugs of the problem types. RFC 9457 wants a URI that stays, not one that can be fetched.
const problemBase = "https://postrider.dev/problems/"

func newProblem(status int, slug, title, detail string) *problem {
	return &problem{Type: problemBase + slug, Title: title, Status: status, Detail: detail, reason: slug}
}

func (p *problem) with(name, value string) *problem {
	if p.header == nil {
		p.header = map[string]string{}
	}
	p.header[name] = value
	return p
}

func malformed(detail string) *problem {
	return newProblem(http.StatusBadRequest, "malformed", "The request cannot be read", detail)
}

func unsupportedMedia(detail string) *problem {
	return newProblem(http.StatusUnsupportedMediaType, "unsupported-media-type", "Unsupported media type", detail).
		with("Accept", mediaTypeJSON)
}

// unauthenticated is the answer for a request without a good credential: RFC 6750 names an error only if there was one.
func unauthenticated(detail string, tokenGiven bool) *problem {
	challenge := `Bearer realm="postrider"`
	if tokenGiven {
		challenge += `, error="invalid_token"`
	}
	return newProblem(http.StatusUnauthorized, "unauthenticated", "No valid credential", detail).
		with("WWW-Authenticate", challenge)
}

func forbidden(detail string) *problem {
	return newProblem(http.StatusForbidden, "forbidden", "Not allowed", detail)
}

func routeNotFound() *problem {
	return newProblem(http.StatusNotFound, "not-found", "Not found", "There is no such route; see /openapi.json.")
}

// eventNotFound is the same for an id that does not exist and for another namespace's.
func eventNotFound() *problem {
	return newProblem(http.StatusNotFound, "not-found", "Not found", "There is no such event in this namespace.")
}

func methodNotAllowed(allow string) *problem {
	return newProblem(http.StatusMethodNotAllowed, "method-not-allowed", "Method not allowed",
		"This route allows "+allow+".").with("Allow", allow)
}

func tooSlow() *problem {
	return newProblem(http.StatusRequestTimeout, "timeout", "Request timeout", "The body did not arrive in time.").
		with("Connection", "close")
}

func conflicting(fields []string) *problem {
	return newProblem(http.StatusConflict, "idempotency-conflict", "The idempotency key belongs to another event",
		"An event with this idempotency key was accepted before and differs in: "+strings.Join(fields, ", ")+
			". Post the same content again, or use a new key.")
}

func tooLarge(limit int64) *problem {
	return newProblem(http.StatusRequestEntityTooLarge, "too-large", "The body is too large",
		fmt.Sprintf("The body may have at most %d bytes.", limit))
}

func invalid(errs ...fieldError) *problem {
	p := newProblem(http.StatusUnprocessableEntity, "invalid", "The event breaks a rule", "See errors for each field.")
	p.Errors = errs
	return p
}

// unavailable is an answer that asks to try again. The wait is spread, so that those who were refused at one moment
// do not come back at one moment.
func unavailable(reason, detail string, cause error) *problem {
	p := newProblem(http.StatusServiceUnavailable, "unavailable", "Unavailable for the moment", detail).
		with("Retry-After", strconv.Itoa(1+rand.N(3))) //nolint:gosec // spreads load, hides nothing
	p.reason, p.cause = reason, cause
	return p
}

// namespaceUnknown is not a refusal: the controller tells of a new namespace within a second or so. Without its uid an
// event would belong to nobody.
func namespaceUnknown(cause error) *problem {
	p := unavailable("namespace-unknown", "The namespace does not exist, or is so new that Postrider has not heard of it yet.", cause)
	p.Type = problemBase + "namespace-unknown"
	return p
}

// refusedValue is for what only the database finds fault with. Its message may quote the value, so it is told to nobody.
func refusedValue(cause error) *problem {
	p := newProblem(http.StatusUnprocessableEntity, "invalid", "The event breaks a rule", "The database refuses a value of this event.")
	p.reason, p.cause = "refused-value", cause
	return p
}

func internal(cause error) *problem {
	p := newProblem(http.StatusInternalServerError, "internal", "Internal error",
		"The fault is ours; the log tells more under this request_id.")
	p.cause = cause
	return p
}

// asProblem turns any error of a handler into an answer.
func asProblem(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	return internal(err)
}

func writeProblem(w http.ResponseWriter, r *http.Request, p *problem) {
	answer := *p
	answer.RequestID = requestID(r.Context())
	for name, value := range p.header {
		w.Header().Set(name, value)
	}
	writeJSON(w, p.Status, "application/problem+json", &answer)
}

const mediaTypeJSON = "application/json"

func writeJSON(w http.ResponseWriter, status int, contentType string, body any) {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		http.Error(w, "", http.StatusInternalServerError) // our own types always encode
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(text.Len()))
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text.String())) // a client that has gone cannot be told
}

// rfc3339 is how times are written: UTC, milliseconds, which is what an event's id carries.
func rfc3339(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
