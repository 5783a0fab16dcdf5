package access

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/utils/lru"
)

// Guard lets those pass whom the Kubernetes API allows the URL that they ask for, as nonResourceURLs of RBAC say.
// Without a good token the answer is 401, without the permission 403, and 503 where the API cannot be asked.
type Guard struct {
	api     *API
	log     *slog.Logger
	allowed *lru.Cache // asking → time.Time at which it was allowed; refusals are not remembered
	known   chan struct{}
	unknown chan struct{}
	away    atomic.Bool
}

const (
	// allowFor is how long an allowing answer is used without asking again.
	allowFor = time.Minute
	// maxAllowed bounds the remembered answers. Few read metrics.
	maxAllowed = 256
	// maxReviews bounds the requests under review that were never allowed, and again those that were. Whoever comes
	// in excess is sent away: garbage tokens must neither flood the API server nor keep the known out.
	maxReviews = 8
	// maxToken bounds what is hashed and sent on; ServiceAccount tokens have about 1 KiB.
	maxToken = 16 << 10
)

// asking identifies who asks for what: a SHA-256 of token, verb and path.
type asking [sha256.Size]byte

// NewGuard makes a guard. It logs when the API goes and when it comes back.
func NewGuard(api *API, log *slog.Logger) *Guard {
	return &Guard{
		api: api, log: log, allowed: lru.New(maxAllowed),
		known: make(chan struct{}, maxReviews), unknown: make(chan struct{}, maxReviews),
	}
}

// Protect puts the guard before a handler, which does not get to see the token.
func (g *Guard) Protect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch status := g.judge(r); status {
		case http.StatusOK:
			r.Header.Del("Authorization")
			h.ServeHTTP(w, r)
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "Send one bearer token that the Kubernetes API accepts.", status)
		case http.StatusForbidden:
			http.Error(w, "The token is good, but its user may not do this: bind it a ClusterRole that allows the nonResourceURL.", status)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "The token cannot be reviewed at the moment.", status)
		}
	})
}

// judge returns the status that a request deserves, 200 if it may pass.
func (g *Guard) judge(r *http.Request) int {
	token := bearer(r.Header)
	if token == "" {
		return http.StatusUnauthorized
	}
	what := authorizationv1.NonResourceAttributes{Verb: strings.ToLower(r.Method), Path: r.URL.Path}
	key := keyOf(token, what)
	last, known := g.allowed.Get(key)
	if at, ok := last.(time.Time); ok && time.Since(at) < allowFor {
		return http.StatusOK
	}
	slots := g.unknown
	if known {
		slots = g.known
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return http.StatusServiceUnavailable
	}
	began := time.Now()
	status, err := g.ask(r.Context(), token, what)
	g.note(r.Context(), err)
	switch {
	case status == http.StatusOK:
		g.allowed.Add(key, began)
	case err == nil:
		g.allowed.Remove(key)
	}
	return status
}

// ask has both reviews made. An error is why there is no verdict.
func (g *Guard) ask(ctx context.Context, token string, what authorizationv1.NonResourceAttributes) (int, error) {
	who, err := g.api.Whose(ctx, token, "")
	if errors.Is(err, ErrRefused) {
		return http.StatusUnauthorized, nil
	}
	if err != nil {
		return http.StatusServiceUnavailable, err
	}
	err = g.api.MayReach(ctx, who, what)
	if errors.Is(err, ErrRefused) {
		return http.StatusForbidden, nil
	}
	if err != nil {
		return http.StatusServiceUnavailable, err
	}
	return http.StatusOK, nil
}

// note logs the beginning and the end of an outage, not every request in it: anybody may send those.
func (g *Guard) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		if g.away.Swap(false) {
			g.log.Info("the Kubernetes API reviews who reads metrics again")
		}
	case ctx.Err() != nil: // the caller left, which says nothing of the API
	case !g.away.Swap(true):
		g.log.Warn("the Kubernetes API cannot be asked who may read metrics", "reason", err.Error())
	}
}

// bearer returns the token of a request that has exactly one, or "".
func bearer(header http.Header) string {
	values := header.Values("Authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(values[0]), " ")
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxToken || strings.ContainsAny(token, " \t,") {
		return ""
	}
	return token
}

func keyOf(token string, what authorizationv1.NonResourceAttributes) asking {
	hash := sha256.New()
	for _, part := range []string{token, what.Verb, what.Path} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		hash.Write(length[:])
		hash.Write([]byte(part))
	}
	return asking(hash.Sum(nil))
}
