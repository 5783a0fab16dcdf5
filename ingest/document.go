package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// member is one member of a JSON object, its value's bytes as they came.
type member struct {
	name  string
	value []byte
	depth int // of the value: 0 for a scalar
}

// members takes a JSON object apart without touching the values: decoding and encoding again would round numbers,
// reorder keys and drop what Go cannot hold. A text that is not JSON is a 400, one that is no object a 422.
func members(text []byte) ([]member, *problem) {
	if !utf8.Valid(text) {
		return nil, malformed("The body is not valid UTF-8, which JSON has to be.")
	}
	if !json.Valid(text) {
		return nil, malformed("The body is not valid JSON" + whereInvalid(text) + ".")
	}
	at := afterSpace(text, 0)
	if text[at] != '{' {
		return nil, invalid(fieldError{"", "the body must be a JSON object with type and payload"})
	}
	var all []member
	// From here on the grammar is known to hold, so that looking for the ends of strings and values is enough.
	for at = afterSpace(text, at+1); text[at] != '}'; at = afterSpace(text, at) {
		if text[at] == ',' {
			at = afterSpace(text, at+1)
		}
		end := stringEnd(text, at)
		var name string
		if err := json.Unmarshal(text[at:end], &name); err != nil {
			return nil, malformed("The body is not valid JSON.")
		}
		at = afterSpace(text, afterSpace(text, end)+1) // the colon
		end, depth := valueEnd(text, at)
		all = append(all, member{name: name, value: text[at:end], depth: depth})
		if len(all) > maxMembers {
			return nil, invalid(fieldError{"", "the body has too many members"})
		}
		at = end
	}
	return all, nil
}

// maxMembers bounds what is collected; five have a meaning.
const maxMembers = 64

func whereInvalid(text []byte) string {
	var syntax *json.SyntaxError
	if err := json.Unmarshal(text, new(json.RawMessage)); errors.As(err, &syntax) {
		return fmt.Sprintf(" (at byte %d)", syntax.Offset)
	}
	return ""
}

func afterSpace(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r') {
		at++
	}
	return at
}

// stringEnd returns where the string that begins at a quote ends, past its closing quote.
func stringEnd(text []byte, at int) int {
	for at++; text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return at + 1
}

// valueEnd returns where a value ends and how deep it nests.
func valueEnd(text []byte, at int) (end, depth int) {
	open := 0
	for at < len(text) {
		switch text[at] {
		case '"':
			at = stringEnd(text, at)
			if open == 0 {
				return at, depth
			}
			continue
		case '{', '[':
			open++
			depth = max(depth, open)
		case '}', ']':
			if open == 0 {
				return at, depth // of the object around a scalar
			}
			if open--; open == 0 {
				return at + 1, depth
			}
		case ',', ' ', '\t', '\n', '\r':
			if open == 0 {
				return at, depth
			}
		}
		at++
	}
	return at, depth
}
