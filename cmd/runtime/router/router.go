// Package router serves the tools, prompts and resources of all tool servers of a session behind
// one endpoint.
package router

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/version"
)

const (
	// connectTimeout is long enough for a server that installs itself before it answers.
	connectTimeout = 90 * time.Second
	// streamTimeout is how long a server may take to open the stream of its notifications.
	streamTimeout = 10 * time.Second
	// callTimeout is how long a server may take for an answer, or for a sign of progress, and
	// longestCall how long whatever progress it tells of.
	callTimeout = 10 * time.Minute
	longestCall = 4 * time.Hour
	// listPause is at least between two times that a server is asked for its lists.
	listPause = time.Second
	// A server that ended is tried again after firstRetry, then after twice as long each time up to
	// lastRetry.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// forget is when a client that went without saying so is forgotten.
	forget = 24 * time.Hour
)

var implementation = &mcp.Implementation{Name: "parley", Title: "Parley tool router", Version: version.Parley}

// Options of a Router.
type Options struct {
	Servers session.ToolServers
	// Key is the secret in a file of the session, Value the same as it stands, with the line break
	// that may end it.
	Key, Value func(file string) string
	// Mask takes secrets out of what servers say when they fail.
	Mask func(string) string
	// Output of a stdio server's standard error.
	Output func(server string) io.WriteCloser
	// Dir and Env of stdio servers.
	Dir string
	Env []string
	// Confine stdio servers, where that can be done.
	Confine func(*exec.Cmd)
	// Busy is called when a request comes in; what it returns, when the request is answered.
	Busy func() (done func())
	Log  *slog.Logger

	// Times, where they are not the usual ones.
	ConnectTimeout, StreamTimeout, CallTimeout, LongestCall, ListPause, FirstRetry time.Duration
}

// Router is the endpoint in front of the tool servers.
type Router struct {
	http.Handler
	options   Options
	keys      *keys
	server    *mcp.Server
	upstreams []*upstream
	settled   chan struct{}

	mu sync.Mutex
	// claims are the names that are taken at the endpoint, names those that things have there.
	claims map[claim]bool
	names  map[original]string
}

// claim is a name of one kind of thing.
type claim struct{ kind, name string }

// original is a thing as its server calls it.
type original struct {
	server     *upstream
	kind, name string
}

// New is a router that has not started yet: it serves, but has nothing to offer.
func New(options Options) *Router {
	options.ConnectTimeout = cmp.Or(options.ConnectTimeout, connectTimeout)
	options.StreamTimeout = cmp.Or(options.StreamTimeout, streamTimeout)
	options.CallTimeout = cmp.Or(options.CallTimeout, callTimeout)
	options.LongestCall = cmp.Or(options.LongestCall, longestCall)
	options.ListPause = cmp.Or(options.ListPause, listPause)
	options.FirstRetry = cmp.Or(options.FirstRetry, firstRetry)
	r := &Router{options: options, settled: make(chan struct{}), claims: map[claim]bool{}, names: map[original]string{}}
	r.server = mcp.NewServer(implementation, &mcp.ServerOptions{
		// Servers come and go, so what there is now says nothing about what there will be.
		Capabilities: &mcp.ServerCapabilities{
			Tools:     &mcp.ToolCapabilities{ListChanged: true},
			Prompts:   &mcp.PromptCapabilities{ListChanged: true},
			Resources: &mcp.ResourceCapabilities{ListChanged: true},
		},
	})
	r.server.AddReceivingMiddleware(r.noteActivity, r.withoutKeys)
	r.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return r.server },
		&mcp.StreamableHTTPOptions{
			SessionTimeout: forget,
			// Whoever serves this has looked at where a request comes from, or at the key that it
			// shows.
			DisableLocalhostProtection: true,
		})
	r.addUpstreams(options.Servers)
	r.keys = newKeys(&options, r.upstreams)
	return r
}

// Run keeps the servers running and connected until ctx is done. Then it ends them.
func (r *Router) Run(ctx context.Context) {
	var running, starting sync.WaitGroup
	for _, u := range r.upstreams {
		starting.Add(1)
		running.Go(func() { u.run(ctx, sync.OnceFunc(starting.Done)) })
	}
	starting.Wait()
	close(r.settled)
	running.Wait()
}

// Settled is closed once every server is connected or has failed: for the first time, or a few
// times where it is only that it cannot be reached.
func (r *Router) Settled() <-chan struct{} { return r.settled }

// Health of the servers.
func (r *Router) Health() []session.ToolServer {
	health := make([]session.ToolServer, 0, len(r.upstreams))
	for _, u := range r.upstreams {
		health = append(health, u.health())
	}
	return health
}

// noteActivity counts requests that ask for something. A ping, a notification and a stream that
// waits for notifications only say that a client is still there.
func (r *Router) noteActivity(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		if method == "ping" || method == "subscriptions/listen" || strings.HasPrefix(method, "notifications/") {
			return next(ctx, method, request)
		}
		defer r.options.Busy()()
		return next(ctx, method, request)
	}
}
