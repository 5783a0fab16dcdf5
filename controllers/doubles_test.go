package controllers

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/store"
)

// gatedStore lets a test hold up what concerns single endpoints, and let it go on.
type gatedStore struct {
	Store
	mutex sync.Mutex
	open  chan struct{} // closed: calls pass
	held  chan string   // receives the name of each call that is held up
}

func newGatedStore(s Store) *gatedStore {
	g := &gatedStore{Store: s, open: make(chan struct{}), held: make(chan string, 100)}
	close(g.open)
	return g
}

func (g *gatedStore) shut() {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.open = make(chan struct{})
}

func (g *gatedStore) release() {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	close(g.open)
}

func (g *gatedStore) pass(ctx context.Context, name string) error {
	g.mutex.Lock()
	open := g.open
	g.mutex.Unlock()
	select {
	case <-open:
		return nil
	default:
		g.held <- name
	}
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gatedStore) Endpoint(ctx context.Context, namespace, name string) (store.Endpoint, error) {
	if err := g.pass(ctx, name); err != nil {
		return store.Endpoint{}, err
	}
	return g.Store.Endpoint(ctx, namespace, name)
}

func (g *gatedStore) TombstoneEndpoint(ctx context.Context, namespace, name, uid string) (bool, error) {
	if err := g.pass(ctx, name); err != nil {
		return false, err
	}
	return g.Store.TombstoneEndpoint(ctx, namespace, name, uid)
}

// counted returns a configuration whose requests are counted, and the count of those whose method and path contain a
// text.
func counted(config *rest.Config) (*rest.Config, func(text string) int) {
	var mutex sync.Mutex
	var requests []string
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			mutex.Lock()
			requests = append(requests, r.Method+" "+r.URL.Path)
			mutex.Unlock()
			return next.RoundTrip(r)
		})
	})
	return config, func(text string) (n int) {
		mutex.Lock()
		defer mutex.Unlock()
		for _, r := range requests {
			if strings.Contains(r, text) {
				n++
			}
		}
		return n
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// cuttable returns a configuration whose watches of a resource can be cut, and kept from coming back: the API server is
// said to remember nothing, so that all is listed anew once restored.
func cuttable(config *rest.Config, resource string) (cut *rest.Config, lose, restore func()) {
	var mutex sync.Mutex
	var lost bool
	watches := map[*cutBody]bool{}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/"+resource) {
				return next.RoundTrip(r)
			}
			mutex.Lock()
			refuse := lost
			mutex.Unlock()
			if refuse {
				const expired = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`
				return &http.Response{
					StatusCode: http.StatusGone, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
					Body: io.NopCloser(strings.NewReader(expired)),
				}, nil
			}
			response, err := next.RoundTrip(r)
			if err == nil && r.URL.Query().Get("watch") != "" {
				body := &cutBody{ReadCloser: response.Body}
				response.Body = body
				mutex.Lock()
				watches[body] = true
				mutex.Unlock()
			}
			return response, err
		})
	})
	set := func(to bool) {
		mutex.Lock()
		defer mutex.Unlock()
		lost = to
		for body := range watches {
			_ = body.Close()
			delete(watches, body)
		}
	}
	return config, func() { set(true) }, func() { set(false) }
}

// cutBody may be closed by two.
type cutBody struct {
	io.ReadCloser
	once sync.Once
	err  error
}

func (b *cutBody) Close() error {
	b.once.Do(func() { b.err = b.ReadCloser.Close() })
	return b.err
}
