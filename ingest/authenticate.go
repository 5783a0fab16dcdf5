package ingest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
)

// Audience that a token must have been issued for. A default token, which any pod could pass on, has another one.
const Audience = "postrider"

// identity is whom a token belongs to.
type identity struct {
	info      user.Info
	namespace string    // of a ServiceAccount; "" for any other user
	expires   time.Time // of the token; zero: not known
}

func (i identity) validUntil() time.Time { return i.expires }

// tokenReviewer asks the API server whose a token is.
type tokenReviewer struct {
	requests authenticator.Request
	timeout  time.Duration
}

// reviewBackoff retries what the API server itself asks to be retried, within the review's timeout.
func reviewBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3}
}

func newTokenReviewer(config *rest.Config, client *http.Client, timeout time.Duration) (*tokenReviewer, error) {
	reviews, err := authenticationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("make the client for token reviews: %w", err)
	}
	requests, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient:  reviews,
		TokenAccessReviewTimeout: timeout,
		WebhookRetryBackoff:      reviewBackoff(),
		CacheTTL:                 0, // verdicts remembers
		// APIAudiences stays nil: with it set, an answer without audiences, which is what a default token gets
		// from some authenticators, would be taken as one for these audiences. The audience travels in the context.
	}.New()
	if err != nil {
		return nil, fmt.Errorf("make the authenticator: %w", err)
	}
	return &tokenReviewer{requests: requests, timeout: timeout}, nil
}

// ask returns the question whose token it is.
func (t *tokenReviewer) ask(token string) func(context.Context) (identity, error) {
	return func(ctx context.Context) (identity, error) {
		began := time.Now()
		ctx = authenticator.WithAudiences(ctx, authenticator.Audiences{Audience})
		// A request of our own: the producer's has other headers that the library would look at.
		r := (&http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}).WithContext(ctx)
		answer, ok, err := t.requests.AuthenticateRequest(r)
		switch {
		case err != nil && (cannotBeAsked(err) || time.Since(began) >= t.timeout):
			return identity{}, err
		case err != nil || !ok || !slices.Contains(answer.Audiences, Audience):
			return identity{}, errRefused // the library's message may quote the token
		}
		who := identity{info: answer.User, expires: expiryOf(token)}
		if namespace, _, err := serviceaccount.SplitUsername(answer.User.GetName()); err == nil {
			who.namespace = namespace
		}
		return who, nil
	}
}

// cannotBeAsked tells an outage from a refusal, both of which the library returns as errors. A refusal is the bare
// text of the review's status; everything that happens on the way to a review has a type: a failed request, an answer
// that is no review (see reviewTransport), an API error (also our own missing permission to ask), an ended context.
func cannotBeAsked(err error) bool {
	var all []error
	var aggregate utilerrors.Aggregate
	if errors.As(err, &aggregate) {
		all = utilerrors.Flatten(aggregate).Errors()
	} else {
		all = []error{err}
	}
	return slices.ContainsFunc(all, func(err error) bool {
		var request *url.Error
		var status apierrors.APIStatus
		return errors.As(err, &request) || errors.As(err, &status) ||
			errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	})
}

// expiryOf reads the exp claim of a JWT without verifying it: the API server has. Zero where there is none.
func expiryOf(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Expires float64 `json:"exp"`
	}
	if json.Unmarshal(text, &claims) != nil || claims.Expires <= 0 || claims.Expires > math.MaxInt32*100 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Expires), 0)
}

func tokenDigest(token string) digest { return sha256.Sum256([]byte(token)) }

// reviewClient makes the client that asks the API server.
func reviewClient(kubernetes *rest.Config) (*http.Client, *rest.Config, error) {
	config := rest.CopyConfig(kubernetes)
	config.QPS = -1 // the default of 5/s would throttle all producers together; slots bound the reviews
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return reviewTransport{next} })
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make the client of the Kubernetes API: %w", err)
	}
	return client, config, nil
}

// reviewTransport lets a successful answer pass only if it is a review. Without it the answer of something else in the
// API server's place (a proxy's page with status 200, a truncated body) decodes to an empty review, which refuses.
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
	if err := json.Unmarshal(body, &review); err != nil || len(review.Status) == 0 ||
		(review.Kind != "TokenReview" && review.Kind != "SubjectAccessReview") {
		return nil, fmt.Errorf("the API server answered %s with something that is no review", response.Status)
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}
