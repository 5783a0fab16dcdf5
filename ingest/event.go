package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

// event is what a producer posted.
type event struct {
	eventType      string
	contentType    string
	payload        []byte // as posted, byte for byte
	orderingKey    string // "": none
	idempotencyKey string // "": none
	traceparent    string // "": none
}

const (
	maxType    = 128
	maxKey     = 255
	maxNesting = 256
	// maxErrors bounds an answer; nobody reads more.
	maxErrors = 32
)

// keyHeader is where the idempotency key may come instead of in the body.
const keyHeader = "Idempotency-Key"

// parseEvent reads a posted event. All that is wrong with it is in the one problem that it returns.
func parseEvent(body []byte, header http.Header) (event, *problem) {
	all, p := members(body)
	if p != nil {
		return event{}, p
	}
	e := event{contentType: mediaTypeJSON, traceparent: traceparent(header)}
	errs := &fieldErrors{}
	seen := map[string]bool{}
	for _, m := range all {
		if seen[m.name] {
			errs.add(cleanName(m.name), "is there twice; send it once")
			continue
		}
		seen[m.name] = true
		switch m.name {
		case "type":
			e.eventType = errs.readType(m)
		case "payload":
			if e.payload = m.value; m.depth > maxNesting {
				errs.add("payload", fmt.Sprintf("is nested %d deep; at most %d is allowed", m.depth, maxNesting))
			}
		case "ordering_key":
			e.orderingKey = errs.readKey(m)
		case "idempotency_key":
			e.idempotencyKey = errs.readKey(m)
		default:
			errs.add(cleanName(m.name), "is not a field of an event; there are type, payload, ordering_key and idempotency_key")
		}
	}
	if !seen["type"] {
		errs.add("type", "is required")
	}
	if !seen["payload"] {
		errs.add("payload", "is required: any JSON value")
	}
	e.idempotencyKey = errs.keyFromHeader(header, e.idempotencyKey)
	if len(errs.all) > 0 {
		return event{}, invalid(errs.all...)
	}
	return e, nil
}

type fieldErrors struct{ all []fieldError }

func (f *fieldErrors) add(field, message string) {
	if len(f.all) < maxErrors {
		f.all = append(f.all, fieldError{Field: field, Message: message})
	}
}

func (f *fieldErrors) readType(m member) string {
	text, ok := asString(m.value)
	if !ok {
		f.add(m.name, "must be a string, such as \"invoice.paid\"")
		return ""
	}
	if problem := checkType(text); problem != "" {
		f.add(m.name, problem)
		return ""
	}
	return text
}

// readKey reads an ordering or idempotency key. null counts as absent: many clients write an unset field so.
func (f *fieldErrors) readKey(m member) string {
	if string(m.value) == "null" {
		return ""
	}
	text, ok := asString(m.value)
	switch {
	case !ok:
		f.add(m.name, "must be a string")
		return ""
	case hasLoneSurrogate(m.value):
		// Go reads each as U+FFFD, so that different keys would become one.
		f.add(m.name, "must be valid Unicode; it has half of a surrogate pair")
		return ""
	}
	if problem := checkKey(text); problem != "" {
		f.add(m.name, problem)
		return ""
	}
	return text
}

func (f *fieldErrors) keyFromHeader(header http.Header, fromBody string) string {
	values := header.Values(keyHeader)
	switch {
	case len(values) == 0:
		return fromBody
	case len(values) > 1:
		f.add(keyHeader, "must be given once")
		return ""
	}
	if problem := checkKey(values[0]); problem != "" {
		f.add(keyHeader, problem)
		return ""
	}
	if fromBody != "" && fromBody != values[0] {
		f.add(keyHeader, "differs from idempotency_key in the body; send one of them, or the same in both")
	}
	return values[0]
}

// checkType returns what is wrong with an event type: 1 to 128 characters, segments of [A-Za-z0-9_-]+ between dots.
func checkType(text string) string {
	const rule = "must be segments of A-Z, a-z, 0-9, _ and - with dots between them, such as \"invoice.paid\""
	switch {
	case text == "":
		return rule + "; it is empty"
	case len(text) > maxType:
		return fmt.Sprintf("must have at most %d characters; it has %d bytes", maxType, len(text))
	}
	for segment := range strings.SplitSeq(text, ".") {
		if segment == "" {
			return rule + "; one segment is empty"
		}
		if !isSegment(segment) {
			return rule + "; it has another character"
		}
	}
	return ""
}

func isSegment(text string) bool {
	for _, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return text != ""
}

// checkKey returns what is wrong with a key: 1 to 255 bytes of UTF-8 without control characters.
func checkKey(text string) string {
	switch {
	case text == "":
		return fmt.Sprintf("must have 1 to %d bytes; leave it out where there is none", maxKey)
	case len(text) > maxKey:
		return fmt.Sprintf("must have 1 to %d bytes; it has %d", maxKey, len(text))
	case !utf8.ValidString(text):
		return "must be valid UTF-8"
	case strings.ContainsFunc(text, unicode.IsControl):
		return "must have no control characters, such as NUL or a newline"
	}
	return ""
}

func asString(value []byte) (string, bool) {
	var text string
	if value[0] != '"' || json.Unmarshal(value, &text) != nil {
		return "", false
	}
	return text, true
}

// hasLoneSurrogate tells whether a JSON string has an escape of half a surrogate pair without its other half.
func hasLoneSurrogate(text []byte) bool {
	for {
		at := bytes.IndexByte(text, '\\')
		if at < 0 {
			return false
		}
		text = text[at:]
		if text[1] != 'u' {
			text = text[2:]
			continue
		}
		switch surrogate(text) {
		case high:
			if surrogate(text[6:]) != low {
				return true
			}
			text = text[12:]
		case low:
			return true
		default:
			text = text[6:]
		}
	}
}

type half int

const (
	neither half = iota
	high
	low
)

func surrogate(text []byte) half {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' || text[2]|0x20 != 'd' {
		return neither
	}
	switch c := text[3] | 0x20; {
	case c == '8' || c == '9' || c == 'a' || c == 'b':
		return high
	case c >= 'c' && c <= 'f':
		return low
	}
	return neither
}

// cleanName makes a member's name fit for an answer.
func cleanName(name string) string {
	const most = 64
	name = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return utf8.RuneError
		}
		return c
	}, name)
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "…"
	}
	return name
}
