package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// routes is the whole API. Around every request: its id, its log line and metric, recovery. Then the route, and for
// the routes with data the gate, the admission and the handler.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/api/v1/events", byMethod{http.MethodPost: s.guarded(verbPost, s.postEvent)})
	mux.Handle("/api/v1/events/{id}", byMethod{http.MethodGet: s.guarded(verbRead, s.getEvent)})
	mux.Handle("/openapi.json", byMethod{http.MethodGet: http.HandlerFunc(serveOpenAPI)})
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { fail(r, routeNotFound()) })
	return s.observed(s.recovered(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/") || r.URL.Path != path.Clean(r.URL.Path) {
			fail(r, routeNotFound()) // the mux would redirect, which few clients do with a POST, or answer by itself
			return
		}
		mux.ServeHTTP(w, r)
	})))
}

// guarded lets only admitted requests to a handler.
func (s *Server) guarded(verb string, handle func(http.ResponseWriter, *http.Request, caller) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := s.gate.admit(r, verb)
		noteCaller(r, from)
		if err != nil {
			fail(r, err)
			return
		}
		leave, err := s.admission.enter()
		if err != nil {
			fail(r, err)
			return
		}
		defer leave()
		if err := handle(w, r, from); err != nil {
			fail(r, err)
		}
	})
}

// byMethod chooses by method, and says which ones there are.
type byMethod map[string]http.Handler

func (m byMethod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	handler, ok := m[method]
	if !ok {
		allow := make([]string, 0, 2)
		for name := range m {
			allow = append(allow, name)
			if name == http.MethodGet {
				allow = append(allow, http.MethodHead)
			}
		}
		fail(r, methodNotAllowed(strings.Join(allow, ", ")))
		return
	}
	handler.ServeHTTP(w, r)
}

// exchange is what is noted of a request on its way, for its answer, log line and metric.
type exchange struct {
	id      string
	route   string
	from    caller
	problem *problem
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{}
}

func requestID(ctx context.Context) string { return exchangeOf(ctx).id }

func noteCaller(r *http.Request, from caller) {
	x := exchangeOf(r.Context())
	x.from, x.route = from, r.Pattern
}

// fail notes the problem that a request is answered with; observed writes it.
func fail(r *http.Request, err error) {
	x := exchangeOf(r.Context())
	x.problem, x.route = asProblem(err), r.Pattern
}

// observed gives a request its id, writes its problem if it has one, and says what became of it.
func (s *Server) observed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		x := &exchange{id: givenRequestID(r.Header)}
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
		answer := &answerWriter{ResponseWriter: w}
		w.Header().Set("X-Request-Id", x.id)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if s.stopping.Load() {
			w.Header().Set("Connection", "close") // lets clients go elsewhere before we close
		}
		next.ServeHTTP(answer, r)
		if x.problem != nil && answer.status == 0 {
			writeProblem(answer, r, x.problem)
		}
		if x.route == "" {
			x.route = r.Pattern
		}
		if x.route == "" {
			x.route = "/"
		}
		s.metrics.requests.WithLabelValues(x.route, knownMethod(r.Method), strconv.Itoa(answer.status)).Inc()
		s.metrics.requestSeconds.WithLabelValues(x.route).Observe(time.Since(began).Seconds())
		s.report(r, x)
	})
}

// report logs a request that was refused: who may not is the audit's business, what failed is the operator's.
func (s *Server) report(r *http.Request, x *exchange) {
	p := x.problem
	if p == nil {
		return
	}
	s.metrics.refused.WithLabelValues(p.reason).Inc()
	line := []any{
		"status", p.Status, "reason", p.reason, "request_id", x.id, "route", x.route, "method", knownMethod(r.Method),
		"namespace", x.from.namespace, "user", x.from.name, "remote", r.RemoteAddr,
	}
	switch {
	case p.Status == http.StatusInternalServerError:
		s.log.Error("request failed", append(line, "error", fmt.Sprint(p.cause))...)
	case p.Status == http.StatusServiceUnavailable:
		level := slog.LevelDebug // the metric counts them all
		if s.warnings.due(time.Now()) {
			level = slog.LevelWarn
		}
		s.log.Log(r.Context(), level, "request cannot be served", append(line, "error", fmt.Sprint(p.cause))...)
	case p.Status == http.StatusUnauthorized, p.Status == http.StatusForbidden:
		s.log.Info("request denied", line...)
	default:
		s.log.Debug("request refused", line...)
	}
}

// recovered turns a panic into a 500. Its stack goes to the log alone.
func (s *Server) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.rescue(r)
		next.ServeHTTP(w, r)
	})
}

func (s *Server) rescue(r *http.Request) {
	switch cause := recover(); cause {
	case nil:
	case http.ErrAbortHandler:
		panic(cause)
	default:
		s.log.Error("panic while serving", "request_id", requestID(r.Context()),
			"error", fmt.Sprint(cause), "stack", string(debug.Stack()))
		fail(r, internal(fmt.Errorf("panic: %v", cause)))
	}
}

// answerWriter remembers the status of an answer. Unwrap lets http.ResponseController through.
type answerWriter struct {
	http.ResponseWriter

	status int
}

func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *answerWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *answerWriter) Write(text []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(text)
}

// givenRequestID is the client's X-Request-Id where it is fit to be logged, else a new one.
func givenRequestID(header http.Header) string {
	const most = 128
	values := header.Values("X-Request-Id")
	if len(values) == 1 && values[0] != "" && len(values[0]) <= most && !strings.ContainsFunc(values[0], func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && !strings.ContainsRune("-_.:/+=@", c)
	}) {
		return values[0]
	}
	return uuid.NewString()
}

// seldom says yes once a second: an outage would otherwise fill the log with one line for each request.
type seldom struct{ last atomic.Int64 }

func (s *seldom) due(now time.Time) bool {
	last := s.last.Load()
	return now.UnixNano()-last >= int64(time.Second) && s.last.CompareAndSwap(last, now.UnixNano())
}

// knownMethod keeps what clients invent out of the labels.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other"
}
