package access

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
)

// reviewTransport lets a successful answer pass only if it is the review that was asked for. Without it the answer of
// something else in the API server's place (a proxy's page with status 200, a truncated body) decodes to an empty
// review, which refuses.
type reviewTransport struct{ next http.RoundTripper }

// maxReview bounds an answer of the API server; a review with hundreds of groups has a few KiB.
const maxReview = 1 << 20

// WrappedRoundTripper lets the client's libraries reach the transport inside, to close its connections.
func (t reviewTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t reviewTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	if err != nil || response.StatusCode < 200 || response.StatusCode > 299 {
		return response, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReview))
	_ = response.Body.Close() // read to its end or given up
	if err != nil {
		return nil, fmt.Errorf("read a review: %w", err)
	}
	var review struct {
		Kind   string          `json:"kind"`
		Status json.RawMessage `json:"status"`
	}
	if err := json.Unmarshal(body, &review); err != nil || len(review.Status) == 0 || review.Kind == "" || review.Kind != kindOf(r) {
		return nil, fmt.Errorf("the API server answered %s with something that is no review", response.Status)
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// kindOf is the kind of object that a request creates, "" for any that is no review, as after a redirect.
func kindOf(r *http.Request) string {
	switch path.Base(r.URL.Path) {
	case "tokenreviews":
		return "TokenReview"
	case "subjectaccessreviews":
		return "SubjectAccessReview"
	}
	return ""
}
