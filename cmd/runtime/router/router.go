// Package router serves the tools, prompts and resources of all the session's tool servers at one
// endpoint.
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
	// connectTimeout is how long a server may take to connect, and then to send its lists. It is
	// long enough for a stdio server that is downloaded when it starts.
	connectTimeout = 90 * time.Second
	// streamTimeout is how long a server may take to open its notification stream.
	streamTimeout = 10 * time.Second
	// callTimeout is how long a server may take to respond or to report progress. longestCall
	// bounds the whole call, even if the server reports progress.
	callTimeout = 10 * time.Minute
	longestCall = 4 * time.Hour
	// listPause is the minimum time between two requests for a server's lists.
	listPause = time.Second
	// A failed server is retried after firstRetry. The delay doubles with each attempt, up to
	// lastRetry.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// clientTimeout is how long the session of a client is kept without requests.
	clientTimeout = 24 * time.Hour
)

var implementation = &mcp.Implementation{Name: "parley", Title: "Parley tool router", Version: version.Parley}

// Options configure a Router.
type Options struct {
	Servers session.ToolServers
	// Builtin are the tools that the runtime runs itself. Their names have no server prefix.
	Builtin []Builtin
	// Value returns the content of a file of the session Secret. Key returns it without surrounding
	// white space.
	Key, Value func(file string) string
	// Mask masks secrets in error texts.
	Mask func(string) string
	// Output returns the writer for a stdio server's standard error.
	Output func(server string) io.WriteCloser
	// Dir and Env are the working directory and the environment of stdio servers.
	Dir     string
	Env     []string
	Confine func(*exec.Cmd)
	// Busy is called for each request, and done is called after the response.
	Busy func() (done func())
	Log  *slog.Logger

	// For these durations, zero means the default.
	ConnectTimeout, StreamTimeout, CallTimeout, LongestCall, ListPause, FirstRetry time.Duration
}

// Builtin is a tool that the runtime runs itself.
type Builtin struct {
	Tool *mcp.Tool
	Run  mcp.ToolHandler
}

// Router is the endpoint through which the agent uses all tool servers.
type Router struct {
	http.Handler
	options   Options
	keys      *keys
	server    *mcp.Server
	upstreams []*upstream
	settled   chan struct{}

	mu sync.Mutex
	// claims contains the names that the router offers. The map names contains the offered name of
	// each item of a server.
	claims map[claim]bool
	names  map[original]string
}

type claim struct{ kind, name string }

// original identifies an item by its server and by its name at that server.
type original struct {
	server     *upstream
	kind, name string
}

// New returns a router that serves requests. It offers only builtin tools until Run is called.
func New(options Options) *Router {
	options.ConnectTimeout = cmp.Or(options.ConnectTimeout, connectTimeout)
	options.StreamTimeout = cmp.Or(options.StreamTimeout, streamTimeout)
	options.CallTimeout = cmp.Or(options.CallTimeout, callTimeout)
	options.LongestCall = cmp.Or(options.LongestCall, longestCall)
	options.ListPause = cmp.Or(options.ListPause, listPause)
	options.FirstRetry = cmp.Or(options.FirstRetry, firstRetry)
	r := &Router{options: options, settled: make(chan struct{}), claims: map[claim]bool{}, names: map[original]string{}}
	r.server = mcp.NewServer(implementation, &mcp.ServerOptions{
		// Servers come and go, so the router always announces all capabilities.
		Capabilities: &mcp.ServerCapabilities{
			Tools:     &mcp.ToolCapabilities{ListChanged: true},
			Prompts:   &mcp.PromptCapabilities{ListChanged: true},
			Resources: &mcp.ResourceCapabilities{ListChanged: true},
		},
	})
	r.server.AddReceivingMiddleware(r.noteActivity, r.redactKeys)
	r.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return r.server },
		&mcp.StreamableHTTPOptions{
			SessionTimeout: clientTimeout,
			// This protection is not needed, because the runtime's own handlers check the origin or
			// the key of each request before they pass it to this handler.
			DisableLocalhostProtection: true,
		})
	for _, builtin := range options.Builtin {
		r.claims[claim{"tool", builtin.Tool.Name}] = true
		r.server.AddTool(builtin.Tool, builtin.Run)
	}
	r.addUpstreams(options.Servers)
	r.keys = newKeys(&options, r.upstreams)
	return r
}

// Run keeps the servers connected until ctx is done, and then stops them.
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

// Settled returns a channel that is closed when every server is connected or has failed. An
// unreachable server counts as failed after a few attempts.
func (r *Router) Settled() <-chan struct{} { return r.settled }

// Health returns the state of the servers.
func (r *Router) Health() []session.ToolServer {
	health := make([]session.ToolServer, 0, len(r.upstreams))
	for _, u := range r.upstreams {
		health = append(health, u.health())
	}
	return health
}

// noteActivity calls Busy for requests. Pings, notifications and notification streams do not count,
// because they only show that a client is connected.
func (r *Router) noteActivity(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		if method == "ping" || method == "subscriptions/listen" || strings.HasPrefix(method, "notifications/") {
			return next(ctx, method, request)
		}
		defer r.options.Busy()()
		return next(ctx, method, request)
	}
}
