// Package server serves the HTTP operations: it authenticates users, reads requests and calls the
// other packages.
package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
	"github.com/parley-dev/parley/cmd/facade/audit"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/conversations"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/facade/page"
	"github.com/parley-dev/parley/cmd/facade/settings"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/deadline"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

const (
	// ReadTimeout limits the time in which the client must send the request.
	ReadTimeout = time.Minute
	// requestTimeout limits the time of the work on a request after the request was read.
	requestTimeout = 15 * time.Second
	// responseTimeout limits the time in which the client must read the response.
	responseTimeout = 15 * time.Second
)

// Options configures the HTTP operations.
type Options struct {
	// Limits are the limits per user and in total.
	Limits limits.Options
	// WakeTimeout limits the time for which a message waits until its session runs. Zero means the
	// default.
	WakeTimeout time.Duration
	// CORSOrigins are the other origins whose pages may call the API; * means any origin.
	CORSOrigins []string
	// Archive reads the data of finished sessions; nil without an archive.
	Archive archiveclient.Reader
	// Usage reads the costs of users; nil without an archive.
	Usage archiveclient.UsageReader
	// SigningKeyDir is the mounted directory with the key that signs session tokens.
	SigningKeyDir string
	// TrustedProxies are the proxies from which the facade accepts the client's address and the
	// information whether the client used TLS.
	TrustedProxies auth.Proxies
	// SignIn configures the sign-in of people with an OpenID provider.
	SignIn SignInOptions
	// Audit is the log of changes; nil for none.
	Audit *audit.Log
}

// DefaultOptions suit a team with one facade. MaxBody has room for two images of the largest size
// in base64. It is not larger than the limit on all bodies of one user.
func DefaultOptions() Options {
	return Options{Limits: limits.Options{MaxBody: 4 << 20, Rate: 20, Burst: 100,
		Streams: limits.Bounds{User: 32, All: 2000}}}
}

type server struct {
	options       Options
	cluster       cluster.API
	metrics       *metrics
	budget        *limits.Budget
	strangers     *limits.Budget
	settings      *settings.Store
	conversations *conversations.Service
	sessions      *live.Sessions
	cookies       *auth.Cookies
	tokens        *auth.Tokens
	onboarded     *onboarded
	health        answer.Health
	// serving is canceled when the facade stops.
	serving context.Context
	stop    context.CancelFunc
}

// Handler serves the HTTP operations.
type Handler struct {
	http.Handler
	server *server
}

// New returns the handler for a cluster and registers its metrics.
func New(c cluster.API, options Options, registry prometheus.Registerer) *Handler {
	options.WakeTimeout = cmp.Or(options.WakeTimeout, wakeTimeout)
	signer := live.NewSigner(options.SigningKeyDir)
	s := &server{
		options:       options,
		cluster:       c,
		metrics:       newMetrics(registry),
		budget:        limits.New(options.Limits),
		strangers:     limits.New(limits.Options{Streams: limits.Bounds{All: maxStrangers}}),
		settings:      &settings.Store{Cluster: c},
		conversations: &conversations.Service{Cluster: c},
		sessions:      live.NewSessions(signer),
		health:        answer.Health{Check: c.Ready},
		tokens:        auth.NewTokens(options.SignIn.Provider, c),
		onboarded:     &onboarded{last: map[string]attempt{}},
		cookies: auth.NewCookies(func() ([][]byte, error) { return signer.Secrets("sign-in") }, options.TrustedProxies,
			options.SignIn.ExternalURL),
	}
	s.serving, s.stop = context.WithCancel(context.Background())
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "parley_facade_degraded",
		Help: "1 while the API server does not answer this facade, else 0."}, func() float64 {
		if s.health.Err() != nil {
			return 1
		}
		return 0
	}))
	return &Handler{Handler: s.observed(s.cors(s.routes())), server: s}
}

// Stopping makes /ready fail, so that no new requests arrive while requests in flight finish.
// Streams end immediately; their clients reconnect to another facade.
func (h *Handler) Stopping() { h.server.stop() }

type request struct {
	*http.Request
	user *auth.User
	// credential is the session key, token or cookie that authenticated the user.
	credential auth.Credential
	// body is nil if the operation does not read it. When free() is called, the body no longer counts
	// towards the limits on bodies.
	body []byte
	free func()
	// conversation is set if the operation is on a conversation.
	conversation *v1alpha1.Conversation
	// held counts the bytes of the response that are in memory and not sent yet.
	held *limits.Hold
}

func (r request) parameters(names []string) url.Values {
	query := url.Values{}
	for _, name := range names {
		query.Set(name, r.URL.Query().Get(name))
	}
	return query
}

// operation is an HTTP operation of a user.
type operation struct {
	do        func(ctx context.Context, r request) (any, error)
	readsBody bool
	// maxBody is the largest Content-Length of a request. Larger requests are refused before their
	// body is read. Zero means the general limit.
	maxBody int64
	// onConversation is set if the path names a conversation. The conversation is read from the
	// cache.
	onConversation bool
	// queue is the limited resource that the operation needs, and for which it waits; zero means
	// none.
	queue limits.Resource
	// serve() replaces do() if the response is long or not JSON. Such a response counts as a stream.
	// An error of serve() is sent to the client only if serve() has sent nothing.
	serve func(w http.ResponseWriter, r request) error
}

func (s *server) operations() map[string]map[string]operation {
	// on returns an operation on one conversation. do() itself reads the conversation.
	on := func(do func(context.Context, *auth.User, string) (any, error)) operation {
		return operation{do: func(ctx context.Context, r request) (any, error) {
			return do(ctx, r.user, r.PathValue("id"))
		}}
	}
	all := map[string]map[string]operation{
		"/api/conversations": {
			"GET": {do: func(ctx context.Context, r request) (any, error) {
				return s.conversations.List(ctx, r.user, r.URL.Query())
			}, queue: limits.Lists},
			"POST": {do: func(ctx context.Context, r request) (any, error) {
				return s.conversations.Post(ctx, r.user, r.body, r.Header.Get(session.IdempotencyHeader))
			}, readsBody: true},
		},
		"/api/conversations/{id}": {
			"GET": on(s.conversations.Get), "DELETE": on(s.conversations.Delete),
			"PATCH": {do: func(ctx context.Context, r request) (any, error) {
				return s.conversations.SetTitle(ctx, r.user, r.PathValue("id"), r.body)
			}, readsBody: true},
		},
		"/api/conversations/{id}/request": {"GET": on(s.conversations.Template)},
		"/api/conversations/{id}/start":   {"POST": on(s.conversations.Start)},
		"/api/conversations/{id}/stop":    {"POST": on(s.conversations.Stop)},
	}
	maps.Copy(all, s.accountOperations())
	maps.Copy(all, s.hostOperations())
	for path, operations := range s.sessionOperations() {
		all["/api/conversations/{id}"+path] = operations
	}
	return all
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	for path, operations := range s.operations() {
		for method, do := range operations {
			mux.HandleFunc(method+" "+path, s.authenticated(do))
		}
		mux.HandleFunc(path, methodNotAllowed(strings.Join(slices.Sorted(maps.Keys(operations)), ", ")))
	}
	for path, do := range map[string]http.HandlerFunc{
		"/alive": answer.Alive, "/health": answer.Alive, "/ready": s.ready, "/openapi.json": openAPI,
		"/api/options/config": clientConfig,
	} {
		mux.HandleFunc("GET "+path, do)
		mux.HandleFunc(path, methodNotAllowed("GET"))
	}
	s.signInRoutes(mux)
	mux.HandleFunc("GET /socket.io/", s.socketIO)
	if err := page.Register(mux); err != nil {
		panic(err) // the files of the page are embedded
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { answer.Write(w, nil, answer.NotFound) })
	return mux
}

func methodNotAllowed(methods string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", methods)
		answer.Write(w, nil, answer.Refuse(http.StatusMethodNotAllowed, "Method Not Allowed"))
	}
}

func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	problem := ""
	if s.serving.Err() != nil {
		problem = "stopping"
	} else if !s.health.Ready() {
		problem = "the API server has not answered yet, or the informer cache is not synced yet"
	}
	if problem == "" {
		answer.Alive(w, r)
		return
	}
	answer.Write(w, nil, &answer.Refusal{Code: http.StatusServiceUnavailable, Body: map[string]string{"status": problem},
		RetryAfter: time.Second})
}

func openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(rest.OpenAPI) // fails only if the client is gone
}

// authenticated checks the credential and the rate limit before it reads the body.
func (s *server) authenticated(o operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// Extend the write deadline: the default of http.Server could pass while a slow body is read.
		patience := ReadTimeout + limits.MaxWait + s.options.WakeTimeout + requestTimeout + responseTimeout
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(patience))
		changes := r.Method != http.MethodGet && r.Method != http.MethodHead
		u, credential, err := s.identify(r, r.Header.Get(rest.KeyHeader), changes)
		if err == nil {
			err = s.admit(r, u, o.weight())
		}
		if err == nil && o.maxBody > 0 && r.ContentLength > o.maxBody {
			err = answer.LargerThan(o.maxBody)
		}
		req := request{Request: r, user: u, credential: credential}
		if err == nil && o.readsBody {
			if req.body, req.free, err = s.budget.ReadBody(r, u.ID()); err == nil {
				defer req.free()
			}
		}
		if err != nil {
			answer.TurnAway(w, r, err)
			return
		}
		req.held = s.budget.Hold(u.ID(), limits.Responses)
		defer req.held.Release()
		if o.serve != nil {
			if err := s.serveStream(w, o, req); err != nil {
				answer.TurnAway(w, r, err)
			}
			return
		}
		// If the client disconnects, the operation still runs to its end, so that no write is
		// interrupted.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTimeout)
		defer cancel()
		body, err := s.perform(ctx, o, req)
		if created, is := body.(*rest.ConversationResponse); is && created != nil {
			note(r, func(n *noted) { n.conversation = created.ConversationID })
		}
		if err != nil && answer.CodeOf(err) == http.StatusInternalServerError {
			// Log only the type of the error, because its text may contain data of the request.
			logf.FromContext(ctx).Info("A request failed", "error", fmt.Sprintf("%T", err))
		}
		answer.Write(&deadline.Writer{ResponseWriter: w, Timeout: writeTimeout}, body, err)
	}
}

// A change of settings counts as settingsWriteWeight requests, because it causes several writes to
// the API server and a new check of all references in the settings.
const settingsWriteWeight = 10

func (o operation) weight() int {
	if o.queue == limits.SettingsWrites {
		return settingsWriteWeight
	}
	return 1
}

func (s *server) serveStream(w http.ResponseWriter, o operation, r request) (err error) {
	if r.conversation, err = s.conversations.Find(r.Context(), r.user, r.PathValue("id")); err != nil {
		return err
	}
	done, err := s.budget.Take(r.user.ID(), limits.Streams)
	if err != nil {
		return err
	}
	defer done()
	return o.serve(w, r)
}

// perform waits for the resource that an operation needs, and then runs the operation.
func (s *server) perform(ctx context.Context, o operation, r request) (_ any, err error) {
	if o.queue != 0 {
		done, err := s.budget.Wait(ctx, r.user.ID(), o.queue)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	if o.onConversation {
		if r.conversation, err = s.conversations.Find(ctx, r.user, r.PathValue("id")); err != nil {
			return nil, err
		}
	}
	return o.do(ctx, r)
}
