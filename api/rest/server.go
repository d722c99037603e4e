package rest

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// readyTimeout bounds how long the API server may take to answer before the facade says it is not ready.
	readyTimeout = 2 * time.Second
	// requestTimeout bounds the work for one request, from when it is read.
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
	bodies   *bodies
	writers  *queues
	health   health
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
		bodies:   newBodies(options.MaxBodyBytes),
		writers:  newQueues(),
	}
	return &Handler{Handler: s.observed(s.cors(s.routes())), server: s}
}

// Stopping makes /ready fail, so that no more requests are sent here while those under way are finished.
func (h *Handler) Stopping() { h.server.stopping.Store(true) }

// request of an authenticated user.
type request struct {
	*http.Request
	// body of an operation that reads it.
	body []byte
}

// operation is what an authenticated user may do.
type operation struct {
	do        func(ctx context.Context, u *user, r request) answer
	readsBody bool
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	for path, operations := range map[string]map[string]operation{
		"/api/settings":                 {"GET": {do: s.getSettings}, "POST": {do: s.postSettings, readsBody: true}},
		"/api/conversations":            {"GET": {do: s.listConversations}, "POST": {do: s.postConversation, readsBody: true}},
		"/api/conversations/{id}":       {"GET": {do: s.getConversation}, "DELETE": {do: s.deleteConversation}},
		"/api/conversations/{id}/start": {"POST": {do: s.startConversation}},
		"/api/conversations/{id}/stop":  {"POST": {do: s.stopConversation}},
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
	problem := ""
	if s.stopping.Load() {
		problem = "stopping"
	} else if s.health.check(s.cluster.ready) != nil {
		problem = "the API server does not answer, or the cache is not filled yet"
	}
	if problem != "" {
		answer{code: http.StatusServiceUnavailable, body: map[string]string{"status": problem}, retryAfter: time.Second}.write(w)
		return
	}
	alive(w, r)
}

// healthLasts is how long an answer of the API server counts. Anybody may ask whether the facade is ready, and must not be
// able to make it ask for each of them.
const healthLasts = time.Second

// health is whether the API server answered when it was asked last.
type health struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

func (h *health) check(ask func(context.Context) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) > healthLasts {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		h.err = ask(ctx)
		h.asked = time.Now()
	}
	return h.err
}
