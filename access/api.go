package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

// ErrRefused is the API's verdict that a token is nobody's, or that an identity may not. It says no more: the API's own
// message may quote the token.
var ErrRefused = errors.New("refused by the API server")

// API asks the Kubernetes API. It is safe for concurrent use and bounds only how long a review takes: how many there are
// at once is up to the caller.
type API struct {
	http     *http.Client
	tokens   authenticationclient.TokenReviewInterface
	accesses authorizationclient.SubjectAccessReviewInterface
	timeout  time.Duration
}

// New makes a client of its own and opens nothing. The timeout is that of one review, its retries included.
func New(kubernetes *rest.Config, timeout time.Duration) (*API, error) {
	config := rest.CopyConfig(kubernetes)
	config.QPS = -1 // the default of 5/s would throttle all whose tokens are reviewed together
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return reviewTransport{next} })
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the client of the Kubernetes API: %w", err)
	}
	tokens, err := authenticationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("make the client for token reviews: %w", err)
	}
	accesses, err := authorizationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("make the client for access reviews: %w", err)
	}
	return &API{http: client, tokens: tokens.TokenReviews(), accesses: accesses.SubjectAccessReviews(), timeout: timeout}, nil
}

// Close closes the connections that are idle. The reviews under way are ended by their contexts.
func (a *API) Close() { utilnet.CloseIdleConnectionsFor(a.http.Transport) }

// review makes a review, and makes it again where the API server asks for that, until the time is over.
func (a *API) review(ctx context.Context, create func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	var last error
	tries := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3}
	err := wait.ExponentialBackoffWithContext(ctx, tries, func(ctx context.Context) (bool, error) {
		last = create(ctx)
		if passing(last) {
			return false, nil
		}
		return last == nil, last
	})
	if last != nil {
		return last // it says more than that the time or the tries are over
	}
	return err
}

// passing says whether the API server, or how the connection ended, suggests to try again.
func passing(err error) bool {
	_, delay := apierrors.SuggestsClientDelay(err)
	return delay || apierrors.IsInternalError(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) ||
		utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}
