package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// contract holds answers against the document that the server serves. Schemas of OpenAPI 3.1 are JSON Schema 2020-12,
// so the whole document is one resource of a JSON Schema compiler.
type contract struct {
	document map[string]any
	mu       sync.Mutex
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema
}

var theContract = sync.OnceValues(func() (*contract, error) {
	text, err := openAPI()
	if err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	closeObjects(document)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("openapi.json", document); err != nil {
		return nil, err
	}
	root, _ := document.(map[string]any)
	return &contract{document: root, compiler: compiler, schemas: map[string]*jsonschema.Schema{}}, nil
})

// closeObjects makes a member that the document does not know an error: clients must bear one, these tests must not.
func closeObjects(node any) {
	switch node := node.(type) {
	case map[string]any:
		if _, described := node["properties"].(map[string]any); described && node["additionalProperties"] == nil {
			node["additionalProperties"] = false
		}
		for _, child := range node {
			closeObjects(child)
		}
	case []any:
		for _, child := range node {
			closeObjects(child)
		}
	}
}

// schema returns the schema at a JSON pointer of the document.
func (c *contract) schema(pointer string) (*jsonschema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.schemas[pointer]; ok {
		return known, nil
	}
	compiled, err := c.compiler.Compile("openapi.json#" + pointer)
	if err == nil {
		c.schemas[pointer] = compiled
	}
	return compiled, err
}

// at follows a path through the document, and references on it. It returns what is there and its pointer.
func (c *contract) at(path ...string) (any, string) {
	var node any = c.document
	pointer := ""
	for _, step := range path {
		object, ok := node.(map[string]any)
		if !ok {
			return nil, ""
		}
		node = object[step]
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(step)
		if target, ok := node.(map[string]any); ok {
			if reference, ok := target["$ref"].(string); ok {
				node, pointer = c.at(strings.Split(strings.TrimPrefix(reference, "#/"), "/")...)
			}
		}
	}
	return node, pointer
}

// check returns how an answer departs from the document.
func (c *contract) check(method, path string, status int, header http.Header, body []byte) error {
	route := routeOf(path)
	if method == http.MethodHead {
		method = http.MethodGet
	}
	responsePath := []string{"paths", route, strings.ToLower(method), "responses", strconv.Itoa(status)}
	described, _ := c.at(responsePath[:3]...)
	if described == nil { // no such route or method: the answer must be a problem
		responsePath = []string{"components", "responses", "Problem"}
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
			return fmt.Errorf("%s %s is not described, but answers %d", method, path, status)
		}
	}
	response, _ := c.at(responsePath...)
	if response == nil {
		return fmt.Errorf("%s %s answers %d, which is not described", method, route, status)
	}
	if err := c.checkHeaders(response, responsePath, header); err != nil {
		return err
	}
	mediaType := header.Get("Content-Type")
	content, pointer := c.at(append(responsePath, "content", mediaType, "schema")...)
	if content == nil {
		return fmt.Errorf("%s %s answers %d with %q, which is not described", method, route, status, mediaType)
	}
	return c.validate(pointer, body)
}

func (c *contract) checkHeaders(response any, path []string, header http.Header) error {
	headers, _ := response.(map[string]any)["headers"].(map[string]any)
	for name := range headers {
		described, pointer := c.at(append(append([]string{}, path...), "headers", name)...)
		value := header.Get(name)
		if value == "" {
			if required, _ := described.(map[string]any)["required"].(bool); required {
				return fmt.Errorf("the header %s is missing", name)
			}
			continue
		}
		schema, err := c.schema(pointer + "/schema")
		if err != nil {
			return err
		}
		if err := schema.Validate(value); err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
	}
	return nil
}

func (c *contract) validate(pointer string, body []byte) error {
	schema, err := c.schema(pointer)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	return schema.Validate(value)
}

var eventRoute = regexp.MustCompile(`^/api/v1/events/[^/]+$`)

func routeOf(path string) string {
	path, _, _ = strings.Cut(path, "?")
	if eventRoute.MatchString(path) {
		return "/api/v1/events/{id}"
	}
	return path
}

func TestTheContractNoticesWhatDeparts(t *testing.T) {
	t.Parallel()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	good := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"r"}}
	const body = `{"id":"01981a2b-0000-7000-8000-000000000000","type":"a","accepted_at":"2026-01-02T03:04:05.678Z","matched":1,"deliveries":[{"endpoint":"e"}],"duplicate":false}`
	if err := c.check("POST", "/api/v1/events", 202, good, []byte(body)); err != nil {
		t.Fatalf("a good answer: %v", err)
	}
	for name, check := range map[string]func() error{
		"another member": func() error {
			return c.check("POST", "/api/v1/events", 202, good, []byte(strings.Replace(body, `{`, `{"extra":1,`, 1)))
		},
		"a member less": func() error {
			return c.check("POST", "/api/v1/events", 202, good, []byte(strings.Replace(body, `"matched":1,`, ``, 1)))
		},
		"another time": func() error {
			return c.check("POST", "/api/v1/events", 202, good, []byte(strings.Replace(body, `.678Z`, `Z`, 1)))
		},
		"another media type": func() error {
			return c.check("POST", "/api/v1/events", 202, http.Header{"Content-Type": {"text/plain"}, "X-Request-Id": {"r"}}, []byte(body))
		},
		"no request id": func() error {
			return c.check("POST", "/api/v1/events", 202, http.Header{"Content-Type": {"application/json"}}, []byte(body))
		},
		"another status": func() error { return c.check("POST", "/api/v1/events", 201, good, []byte(body)) },
	} {
		if check() == nil {
			t.Errorf("%s is not noticed", name)
		}
	}
}

// What the document says of a posted event is what the server takes and refuses.
func TestTheDocumentAgreesWithTheRulesOfAnEvent(t *testing.T) {
	t.Parallel()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		`{"type":"a.b","payload":null}`, `{"type":"a","payload":{},"ordering_key":null,"idempotency_key":"k"}`,
		`{"type":"a"}`, `{"payload":1}`, `{"type":"a.","payload":1}`, `{"type":"a","payload":1,"x":1}`,
		`{"type":"a","payload":1,"ordering_key":""}`, `{"type":"a","payload":1,"idempotency_key":"a\nb"}`,
		`{"type":"a","payload":1,"ordering_key":5}`, `[]`, `{"type":"` + strings.Repeat("a", 129) + `","payload":1}`,
	} {
		described := c.validate("/components/schemas/NewEvent", []byte(body)) == nil
		_, p := parseEvent([]byte(body), nil)
		if taken := p == nil; taken != described {
			t.Errorf("%s: taken: %v, by the document: %v", body, taken, described)
		}
	}
}

func TestEveryRouteOfTheDocumentIsServed(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	var described struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	text, err := openAPI()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &described); err != nil || len(described.Paths) == 0 {
		t.Fatalf("no paths: %v", err)
	}
	for route, methods := range described.Paths {
		for method := range methods {
			got := r.do(t, request{method: strings.ToUpper(method), path: strings.Replace(route, "{id}", "x", 1) + "?namespace=a"})
			if got.status == http.StatusMethodNotAllowed || (got.status == http.StatusNotFound && !strings.Contains(route, "{id}")) {
				t.Errorf("%s %s answers %d", method, route, got.status)
			}
		}
	}
	var served map[string]any
	if err := json.Unmarshal(r.do(t, request{path: "/openapi.json"}).body, &served); err != nil || served["openapi"] != "3.1.0" {
		t.Errorf("the document is not served: %v", err)
	}
}
