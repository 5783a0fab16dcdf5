package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPayloadKeepsItsBytes(t *testing.T) {
	t.Parallel()
	payloads := map[string]string{
		"a number beyond 2^53":        `8202522731445525542`,
		"a number with a zero at end": `12.340`,
		"a number beyond float64":     `1e400`,
		"minus zero":                  `-0`,
		"HTML":                        `"<a href='x'>&</a>"`,
		"escapes":                     `"\u003d\u0041\/\b\n"`,
		"emoji":                       `{"🚀":"🎉"}`,
		"an escaped lone surrogate":   `"\ud83d"`,
		"line separators":             "\"\u2028\u2029\"",
		"duplicate keys":              `{"a":1,"a":2,"a":1}`,
		"key order":                   `{"z":1,"a":2,"m":3}`,
		"odd spacing":                 "{ \"a\" :\t[ 1 ,\r\n 2 ] }",
		"brackets in strings":         `{"a":"}]\"{[\\","b":[{"c":"\\\""}]}`,
		"null":                        `null`,
		"false":                       `false`,
		"an empty string":             `""`,
		"an empty object":             `{}`,
		"a NUL escape":                `"\u0000"`,
	}
	shapes := map[string]string{
		"last":   `{"type":"a.b","payload":%s}`,
		"first":  `{"payload":%s,"type":"a.b"}`,
		"spaced": "\r\n { \"payload\" \t:\n %s \n , \"type\" : \"a.b\" } \n",
	}
	for name, payload := range payloads {
		for shape, form := range shapes {
			t.Run(name+", "+shape, func(t *testing.T) {
				t.Parallel()
				e, p := parseEvent([]byte(strings.Replace(form, "%s", payload, 1)), nil)
				if p != nil {
					t.Fatalf("refused: %v %v", p, p.Errors)
				}
				if string(e.payload) != payload {
					t.Errorf("payload is %q, want %q", e.payload, payload)
				}
			})
		}
	}
}

func TestParseEventRefuses(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", maxNesting+1) + strings.Repeat("]", maxNesting+1)
	tests := []struct {
		name   string
		body   string
		header http.Header
		status int
		fields []string
	}{
		{"nothing", ``, nil, 400, nil},
		{"spaces", `  `, nil, 400, nil},
		{"half an object", `{"type":"a"`, nil, 400, nil},
		{"trailing garbage", `{"type":"a","payload":1} x`, nil, 400, nil},
		{"a second object", `{"type":"a","payload":1}{}`, nil, 400, nil},
		{"a trailing comma", `{"type":"a","payload":1,}`, nil, 400, nil},
		{"single quotes", `{'type':'a','payload':1}`, nil, 400, nil},
		{"NaN", `{"type":"a","payload":NaN}`, nil, 400, nil},
		{"a leading zero", `{"type":"a","payload":01}`, nil, 400, nil},
		{"a raw newline in a string", "{\"type\":\"a\",\"payload\":\"\n\"}", nil, 400, nil},
		{"invalid UTF-8 in the payload", "{\"type\":\"a\",\"payload\":\"\xff\"}", nil, 400, nil},
		{"UTF-16", "\xff\xfe{\x00", nil, 400, nil},
		{"a byte order mark", "\ufeff{\"type\":\"a\",\"payload\":1}", nil, 400, nil},
		{"ten thousand levels and more", `{"type":"a","payload":` + strings.Repeat("[", 100_000), nil, 400, nil},

		{"an array", `[{"type":"a","payload":1}]`, nil, 422, []string{""}},
		{"a string", `"type"`, nil, 422, []string{""}},
		{"null", `null`, nil, 422, []string{""}},
		{"an empty object", `{}`, nil, 422, []string{"type", "payload"}},
		{"a nested payload beyond the bound", `{"type":"a","payload":` + deep + `}`, nil, 422, []string{"payload"}},
		{"type twice", `{"type":"a","payload":1,"type":"b"}`, nil, 422, []string{"type"}},
		{"payload twice, once escaped", `{"type":"a","payload":1,"p\u0061yload":2}`, nil, 422, []string{"payload"}},
		{"another field", `{"type":"a","payload":1,"Type":"b"}`, nil, 422, []string{"Type"}},
		{"a field with a control character", `{"type":"a","payload":1,"x\u0000y":"b"}`, nil, 422, []string{"x\ufffdy"}},
		{"too many members", `{` + strings.Repeat(`"a":1,`, 100) + `"b":1}`, nil, 422, []string{""}},
		{
			"everything wrong at once", `{"type":"a..b","ordering_key":5,"idempotency_key":"","extra":{},"more":[]}`, nil, 422,
			[]string{"type", "ordering_key", "idempotency_key", "extra", "more", "payload"},
		},
		{"a key in the header that differs", `{"type":"a","payload":1,"idempotency_key":"k"}`, http.Header{keyHeader: {"l"}}, 422, []string{keyHeader}},
		{"two key headers", `{"type":"a","payload":1}`, http.Header{keyHeader: {"k", "k"}}, 422, []string{keyHeader}},
		{"an empty key header", `{"type":"a","payload":1}`, http.Header{keyHeader: {""}}, 422, []string{keyHeader}},
		{"a long key header", `{"type":"a","payload":1}`, http.Header{keyHeader: {strings.Repeat("k", 256)}}, 422, []string{keyHeader}},
		{"a key header that is Latin-1", `{"type":"a","payload":1}`, http.Header{keyHeader: {"k\xe9"}}, 422, []string{keyHeader}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, p := parseEvent([]byte(tt.body), tt.header)
			if p == nil {
				t.Fatal("accepted")
			}
			var fields []string
			for _, e := range p.Errors {
				fields = append(fields, e.Field)
			}
			if p.Status != tt.status {
				t.Errorf("status %d, want %d (%v)", p.Status, tt.status, p)
			}
			if diff := cmp.Diff(tt.fields, fields); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEventTypes(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"a": true, "invoice.paid": true, "A-b_9.0.x": true, "-": true, "_._": true,
		strings.Repeat("a", 128): true,
		"":                       false, ".": false, ".a": false, "a.": false, "a..b": false, "a b": false, "a/b": false,
		"*": false, "a.*": false, "é": false, "a\x00": false, "a\n": false, strings.Repeat("a", 129): false,
		strings.Repeat("é", 100): false,
	}
	for eventType, valid := range tests {
		body, err := json.Marshal(map[string]any{"type": eventType, "payload": 1})
		if err != nil {
			t.Fatal(err)
		}
		e, p := parseEvent(body, nil)
		if (p == nil) != valid {
			t.Errorf("%q: got %v, want valid: %v", eventType, p, valid)
		}
		if valid && e.eventType != eventType {
			t.Errorf("%q was read as %q", eventType, e.eventType)
		}
	}
	for _, wrong := range []string{`5`, `null`, `true`, `["a"]`, `{}`} {
		if _, p := parseEvent([]byte(`{"type":`+wrong+`,"payload":1}`), nil); p == nil || p.Status != 422 {
			t.Errorf("type %s: got %v, want 422", wrong, p)
		}
	}
}

func TestKeysHaveClearRules(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		value string // JSON
		want  string
		valid bool
	}{
		{"1 byte", `"k"`, "k", true},
		{"255 bytes", `"` + strings.Repeat("k", 255) + `"`, strings.Repeat("k", 255), true},
		{"255 bytes in 85 characters", `"` + strings.Repeat("€", 85) + `"`, strings.Repeat("€", 85), true},
		{"spaces and quotes", `" a \"b\" "`, ` a "b" `, true},
		{"a surrogate pair", `"\ud83d\ude80"`, "🚀", true},
		{"a replacement character that was posted", `"\ufffd�"`, "\ufffd\ufffd", true},
		{"absent as null", `null`, "", true},
		{"0 bytes", `""`, "", false},
		{"256 bytes", `"` + strings.Repeat("k", 256) + `"`, "", false},
		{"256 bytes in 128 characters", `"` + strings.Repeat("é", 128) + `"`, "", false},
		{"NUL", `"a\u0000b"`, "", false},
		{"a newline", `"a\nb"`, "", false},
		{"DEL", `"a\u007fb"`, "", false},
		{"a C1 control", `"a\u0085b"`, "", false},
		{"a lone high surrogate", `"a\ud83d"`, "", false},
		{"a lone low surrogate", `"\uDE80a"`, "", false},
		{"two high surrogates", `"\ud83d\ud83d\ude80"`, "", false},
		{"a number", `5`, "", false},
		{"a boolean", `false`, "", false},
		{"an object", `{}`, "", false},
	}
	for _, field := range []string{"ordering_key", "idempotency_key"} {
		for _, tt := range tests {
			t.Run(field+", "+tt.name, func(t *testing.T) {
				t.Parallel()
				e, p := parseEvent([]byte(`{"type":"a","payload":1,"`+field+`":`+tt.value+`}`), nil)
				if !tt.valid {
					if p == nil || p.Status != 422 || len(p.Errors) != 1 || p.Errors[0].Field != field {
						t.Fatalf("got %v, want one error for %s", p, field)
					}
					return
				}
				if p != nil {
					t.Fatalf("refused: %v", p.Errors)
				}
				if got := e.orderingKey + e.idempotencyKey; got != tt.want {
					t.Errorf("got %q, want %q", got, tt.want)
				}
			})
		}
	}
}

func TestIdempotencyKeyMayComeInTheHeader(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"type":"a","payload":1}`, `{"type":"a","payload":1,"idempotency_key":"k"}`} {
		e, p := parseEvent([]byte(body), http.Header{keyHeader: {"k"}})
		if p != nil || e.idempotencyKey != "k" {
			t.Errorf("%s: got %q, %v", body, e.idempotencyKey, p)
		}
	}
}

func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	var body bytes.Buffer
	body.WriteString(`{`)
	for i := range maxMembers - 2 {
		fmt.Fprintf(&body, `"%s%d":1,`, strings.Repeat("x", 1000), i)
	}
	body.WriteString(`"type":5}`)
	_, p := parseEvent(body.Bytes(), nil)
	if p == nil || len(p.Errors) != maxErrors {
		t.Fatalf("got %v, want %d errors", p, maxErrors)
	}
	for _, e := range p.Errors {
		if len(e.Field) > 100 {
			t.Errorf("a field of %d bytes is echoed", len(e.Field))
		}
	}
}

// What is posted is either refused or kept byte for byte, and nothing panics.
func FuzzParseEvent(f *testing.F) {
	for _, seed := range []string{
		`{"type":"a.b","payload":{"a":[1,2,{"b":"\"}"}]},"ordering_key":"k","idempotency_key":"\ud83d\ude80"}`,
		` { "payload" : 1e400 , "type" : "a" } `, `{"type":"a","payload":"\\"}`, `{}`, `[]`, `"`, `{"a":{"b":[}]}`, `{"\u0000":1}`,
		`{"type":"a","payload":1,"idempotency_key":"\ud83d"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, p := parseEvent(body, nil)
		if !json.Valid(body) && (p == nil || p.Status != 400) {
			t.Fatalf("not JSON, but got %v", p)
		}
		if p != nil {
			if p.Status != 400 && p.Status != 422 {
				t.Fatalf("status %d", p.Status)
			}
			return
		}
		// The standard library finds the same payload.
		var reference struct {
			Type    string          `json:"type"`
			Payload json.RawMessage `json:"payload"`
		}
		if err := json.Unmarshal(body, &reference); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(e.payload, reference.Payload) || e.eventType != reference.Type {
			t.Fatalf("got %q %q, want %q %q", e.eventType, e.payload, reference.Type, reference.Payload)
		}
	})
}
