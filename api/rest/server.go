package rest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// readyTimeout bounds how long the API server may take to answer before the facade says it is not ready.
	readyTimeout = 2 * time.Second
	// requestTimeout bounds the work for one request.
	requestTimeout = 15 * time.Second
)

// Options of the HTTP operations.
type Options struct {
	// MaxBodyBytes is the largest body that is read.
	MaxBodyBytes int64
	// UserRate is how many requests a second each user may make on average, UserBurst how many at once.
	UserRate  float64
	UserBurst int
	// FailureRate is how many failed authentications a second are answered at once to each address, FailureBurst how many before that.
	FailureRate  float64
	FailureBurst int
	// CORSOrigins are the origins whose pages may call; * is any.
	CORSOrigins []string
}

// DefaultOptions suit a team behind one facade.
func DefaultOptions() Options {
	return Options{MaxBodyBytes: 2 << 20, UserRate: 20, UserBurst: 100, FailureRate: 1, FailureBurst: 10}
}

type server struct {
	cluster  cluster
	options  Options
	now      func() time.Time
	users    *limits
	failures *limits
	writers  *queues
	stopping atomic.Bool
}

// Handler serves the HTTP operations.
type Handler struct {
	http.Handler
	server *server
}

// NewHandler serves the HTTP operations over a cluster.
func NewHandler(c *Cluster, options Options) *Handler { return newHandler(c, options) }

func newHandler(c cluster, options Options) *Handler {
	s := &server{
		cluster:  c,
		options:  options,
		now:      time.Now,
		users:    newLimits(options.UserRate, options.UserBurst),
		failures: newLimits(options.FailureRate, options.FailureBurst),
		writers:  newQueues(),
	}
	return &Handler{Handler: s.observed(s.cors(s.routes())), server: s}
}

// Stopping makes /ready fail, so that no more requests are sent here while those under way are finished.
func (h *Handler) Stopping() { h.server.stopping.Store(true) }

// operation is what an authenticated user may do.
type operation func(ctx context.Context, u *user, r *http.Request) answer

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	for path, operations := range map[string]map[string]operation{
		"/api/settings":                 {"GET": s.getSettings, "POST": s.postSettings},
		"/api/conversations":            {"GET": s.listConversations, "POST": s.postConversation},
		"/api/conversations/{id}":       {"GET": s.getConversation, "DELETE": s.deleteConversation},
		"/api/conversations/{id}/start": {"POST": s.startConversation},
		"/api/conversations/{id}/stop":  {"POST": s.stopConversation},
	} {
		for method, do := range operations {
			mux.HandleFunc(method+" "+path, s.authenticated(do))
		}
		mux.HandleFunc(path, methodNotAllowed(strings.Join(sortedKeys(operations), ", ")))
	}
	for path, do := range map[string]http.HandlerFunc{
		"/alive": alive, "/health": alive, "/ready": s.ready, "/openapi.json": openAPI,
	} {
		mux.HandleFunc("GET "+path, do)
		mux.HandleFunc(path, methodNotAllowed("GET"))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { notFound.write(w) })
	return mux
}

func methodNotAllowed(methods string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", methods)
		refusal(http.StatusMethodNotAllowed, "Method Not Allowed").write(w)
	}
}

func alive(w http.ResponseWriter, _ *http.Request) { ok(map[string]string{"status": "ok"}).write(w) }

func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	problem := ""
	if s.stopping.Load() {
		problem = "stopping"
	} else if s.cluster.ready(ctx) != nil {
		problem = "the API server does not answer, or the cache is not filled yet"
	}
	if problem != "" {
		answer{code: http.StatusServiceUnavailable, body: map[string]string{"status": problem}, retryAfter: time.Second}.write(w)
		return
	}
	alive(w, r)
}

// readBody reads a body, which is JSON whatever its declared type: a form on another site could declare another, but not send
// the key.
func (s *server) readBody(r *http.Request) ([]byte, *answer) {
	body, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &tooLargeBody
	case err != nil:
		refused := refusal(http.StatusBadRequest, "The body could not be read")
		return nil, &refused
	}
	return body, nil
}
