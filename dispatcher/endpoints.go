package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
)

// unusedEndpoint is how long an endpoint that gets nothing is remembered, if there is room.
const unusedEndpoint = 10 * time.Minute

// endpoint is a WebhookEndpoint made ready for sending: parsed, opened, checked. It never changes; a newer version of
// its row makes a new one.
type endpoint struct {
	id      int64
	lane    int64 // 0: nothing may be sent to it
	version int64
	name    string // namespace/name
	host    string
	refused *failure // why nothing can be sent to it at all; unsent tells whose fault that is
	unsent  bool

	template *http.Request // method and URL
	header   http.Header   // the user's
	keys     []signingKey  // newest first
	timeout  time.Duration
	retry    retryPolicy
	pace     time.Duration // between two requests, by its rate; 0: any
}

// signingKey is an opened key, or why it cannot be opened.
type signingKey struct {
	key     signature.Key
	expires time.Time // zero: never
	err     error
}

// Keyring opens what is sealed in the database. It is implemented by [github.com/postrider/postrider/keyring.Keyring].
type Keyring interface {
	Open(sealed []byte, place ...string) ([]byte, error)
}

// endpoints remembers the endpoints that get deliveries, by id and version: a claim says which version is current, and
// what is older, or was judged by another destination policy, is read again before anything is sent. Nothing expires by
// time alone. Only the claimer uses it, so it has no lock.
type endpoints struct {
	store   Store
	keyring Keyring
	policy  atomic.Pointer[destination.Policy] // anybody may change it
	logger  *slog.Logger
	timeout time.Duration // no request takes longer
	most    int
	known   map[int64]*remembered
}

type remembered struct {
	endpoint *endpoint
	policy   *destination.Policy // by which it was judged
	used     instant
}

func newEndpoints(c Config, d Dependencies) *endpoints {
	e := &endpoints{
		store: d.Store, keyring: d.Keyring, logger: d.Logger,
		timeout: c.MaxTimeout, most: c.Endpoints, known: map[int64]*remembered{},
	}
	e.policy.Store(d.Policy)
	return e
}

// current returns the endpoint for a claim if what is remembered is at least as new as the claim says, else nil.
func (e *endpoints) current(c *store.Claim) *endpoint {
	r := e.known[c.EndpointID]
	if r == nil || r.endpoint.version < c.Version || r.policy != e.policy.Load() {
		return nil
	}
	r.used = now()
	return r.endpoint
}

// load reads endpoints in one query and returns them by id. One whose row is not there is not remembered.
func (e *endpoints) load(ctx context.Context, ids []int64) (map[int64]*endpoint, error) {
	rows, err := e.store.Endpoints(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("load endpoints: %w", err)
	}
	read, policy := now(), e.policy.Load()
	loaded := make(map[int64]*endpoint, len(ids))
	for i := range rows {
		p := e.prepare(&rows[i])
		loaded[p.id] = p
		// Prepared by this policy or by a later one: then it is read once more.
		e.known[p.id] = &remembered{endpoint: p, policy: policy, used: read}
	}
	for _, id := range ids {
		if loaded[id] == nil {
			e.logger.Error("an endpoint with deliveries has no row", "event", "endpoint_missing", "endpoint_id", id)
			loaded[id] = &endpoint{id: id, unsent: true, refused: &failure{EndpointMissing, "the endpoint is not in the database"}}
		}
	}
	e.evict()
	return loaded, nil
}

// evict forgets what is not used, and more where there is no room.
func (e *endpoints) evict() {
	if len(e.known) <= e.most {
		return
	}
	for id, r := range e.known {
		if since(r.used) > unusedEndpoint {
			delete(e.known, id)
		}
	}
	// Any of the rest, but for the latest: reading one again costs a query and no delivery.
	for id, r := range e.known {
		if len(e.known) <= e.most {
			return
		}
		if since(r.used) > 0 {
			delete(e.known, id)
		}
	}
}

// prepare makes a row ready for sending.
func (e *endpoints) prepare(row *store.Endpoint) *endpoint {
	spec := &row.Spec
	p := &endpoint{
		id:      row.ID,
		version: row.Version,
		name:    row.Namespace + "/" + row.Name,
		timeout: min(spec.Timeout, e.timeout),
		retry: retryPolicy{
			maxAttempts: spec.MaxAttempts, maxDuration: spec.MaxDuration,
			base: spec.BackoffBase, factor: spec.BackoffFactor, cap: spec.BackoffCap, schedule: spec.Schedule,
		},
	}
	if spec.State == store.Enabled && row.HoldReason == "" && !row.Tombstoned {
		p.lane = row.LaneID
	}
	if spec.Rate != nil && spec.Rate.Requests > 0 {
		p.pace = spec.Rate.Per / time.Duration(spec.Rate.Requests)
	}
	p.template, p.refused = e.template(spec.URL)
	if p.refused != nil {
		return p
	}
	p.host = p.template.URL.Host
	place := row.PublicID.String()
	header, err := e.openHeaders(spec.Headers, place)
	if err != nil {
		p.refused, p.unsent = &failure{HeadersUnavailable, "the headers cannot be decrypted: " + clean(err.Error())}, true
		e.logger.Error("headers cannot be decrypted", "event", "sealed_value", "endpoint", p.name,
			"reason", HeadersUnavailable, "error", err)
		return p
	}
	p.header = header
	for _, sealed := range row.Keys {
		p.keys = append(p.keys, e.openKey(sealed, place, p.name))
	}
	return p
}

func (e *endpoints) template(text string) (*http.Request, *failure) {
	target, err := url.Parse(text)
	if err != nil {
		// The parser's message would quote the URL.
		return nil, &failure{DestinationNotAllowed, "the endpoint's URL cannot be parsed"}
	}
	// The address is judged when it is dialled; but what a URL itself shows, its scheme above all, only here.
	if err := e.policy.Load().CheckURL(target); err != nil {
		return nil, &failure{DestinationNotAllowed, clean(err.Error())}
	}
	target.User, target.Fragment, target.RawFragment = nil, "", ""
	return &http.Request{
		Method: http.MethodPost, URL: target, Host: target.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

func (e *endpoints) openHeaders(sealed []byte, place string) (http.Header, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	text, err := e.keyring.Open(sealed, place, store.ColumnHeaders)
	if err != nil {
		return nil, err
	}
	list, err := store.UnmarshalHeaders(text)
	if err != nil {
		return nil, err
	}
	header := make(http.Header, len(list))
	for _, h := range list {
		setUserHeader(header, h.Name, h.Value)
	}
	return header, nil
}

func (e *endpoints) openKey(sealed store.SealedKey, place, name string) signingKey {
	opened := signingKey{expires: sealed.ExpiresAt}
	secret, err := e.keyring.Open(sealed.Sealed, place, store.ColumnKey)
	if err == nil {
		opened.key, err = signature.ParseKey(secret)
		clear(secret)
	}
	if err != nil {
		opened.err = err
		e.logger.Error("a signing key cannot be opened", "event", "sealed_value", "endpoint", name,
			"reason", SigningKeyUnavailable, "fingerprint", sealed.Fingerprint, "error", err)
	}
	return opened
}

// takes tells whether deliveries of a lane may still be sent. What was claimed before the endpoint was paused, disabled,
// deleted or enabled anew may not be: its lane is held, or cancelled and about to be buried.
func (p *endpoint) takes(lane int64) bool {
	return p.lane == lane || p.refused != nil && p.refused.reason == EndpointMissing
}

var errNoKey = errors.New("there is no signing key")

// signingKeys appends the keys that sign at a time of the database. All of them must be there: a receiver may know but
// the one that is missing.
func (p *endpoint) signingKeys(keys []signature.Key, at time.Time) ([]signature.Key, error) {
	for i := range p.keys {
		k := &p.keys[i]
		if !k.expires.IsZero() && !at.Before(k.expires) {
			continue
		}
		if k.err != nil {
			return nil, k.err
		}
		keys = append(keys, k.key)
	}
	if len(keys) == 0 {
		return nil, errNoKey
	}
	return keys, nil
}
