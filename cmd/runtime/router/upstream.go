package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/parley-dev/parley/api/session"
)

const (
	// startAttempts is the number of transient failures of a server after which the session starts
	// without the server.
	startAttempts = 4
	// stable is how long a server must run before its retry delay is reset.
	stable       = time.Minute
	closeTimeout = 2 * time.Second
	// exitReasonTimeout bounds the wait for a server's exit status after its connection has closed.
	exitReasonTimeout = 2 * time.Second
)

type link struct {
	transport mcp.Transport
	// ended is closed when the server exits. It is nil for remote servers.
	ended  <-chan struct{}
	reason func() error
	// transient reports whether the network or the server had a transient error. It is nil for
	// stdio servers.
	transient func() bool
	// cut closes the link. It also stops the server if the server is a child process.
	cut func()
}

// transientError is an error after which the next attempt may succeed.
type transientError struct{ error }

// dialer creates a link to a server. The dialer of a stdio server also starts the server.
type dialer func(ctx context.Context) (*link, error)

type upstream struct {
	router     *Router
	name, kind string
	dial       dialer
	changed    chan struct{}
	greeting   greeting // used only by the connecting goroutine
	relays     sync.Map // progress handlers by token

	mu       sync.Mutex
	session  *mcp.ClientSession
	failure  string
	connects int
	offers   offers
}

// run keeps the server connected until ctx is done. It calls settled() when the server is connected
// or has failed.
func (u *upstream) run(ctx context.Context, settled func()) {
	defer settled()
	delay := u.router.options.FirstRetry
	for attempt := 1; ; attempt++ {
		started := time.Now()
		err := u.serve(ctx, settled)
		if ctx.Err() != nil {
			return
		}
		u.note(err)
		u.router.options.Log.Warn("tool server failed", "server", u.name, "error", u.router.describe(err))
		// settled() lets the session start without this server. If the error is transient, call
		// settled() only after startAttempts attempts, because many agents read the tool list only
		// once.
		if transient := (transientError{}); !errors.As(err, &transient) || attempt >= startAttempts {
			settled()
		}
		if time.Since(started) > stable {
			delay = u.router.options.FirstRetry
		}
		select {
		// Jitter spreads the retries of sessions that lost the same server.
		case <-time.After(wait.Jitter(delay, 0.5)):
		case <-ctx.Done():
			return
		}
		delay = min(2*delay, lastRetry)
	}
}

// serve connects to the server and returns when the connection has ended.
func (u *upstream) serve(ctx context.Context, settled func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	link, err := u.dial(ctx)
	if err != nil {
		return err
	}
	defer link.cut()
	newer := u.greeting.next()
	client, err := u.connect(ctx, link, newer)
	if err != nil {
		return link.explain(err)
	}
	u.greeting.worked(newer)
	defer closeClient(client)
	if err := u.list(ctx, client); err != nil {
		return link.explain(err)
	}
	u.attach(client)
	defer u.attach(nil)
	settled()
	u.router.options.Log.Info("tool server connected", "server", u.name)
	return u.watch(ctx, client, link)
}

// connect returns within ConnectTimeout even if the SDK does not, because parts of the SDK ignore
// the context.
func (u *upstream) connect(ctx context.Context, link *link, newer bool) (*mcp.ClientSession, error) {
	notice := func() {
		select {
		case u.changed <- struct{}{}:
		default:
		}
	}
	client := mcp.NewClient(implementation, &mcp.ClientOptions{
		Capabilities:                &mcp.ClientCapabilities{},
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { notice() },
		PromptListChangedHandler:    func(context.Context, *mcp.PromptListChangedRequest) { notice() },
		ResourceListChangedHandler:  func(context.Context, *mcp.ResourceListChangedRequest) { notice() },
		ProgressNotificationHandler: u.relayProgress,
	})
	var how mcp.ClientSessionOptions
	if !newer {
		how.ProtocolVersion = legacyProtocol
	}
	type result struct {
		session *mcp.ClientSession
		err     error
	}
	results := make(chan result, 1)
	go func() {
		session, err := client.Connect(ctx, link.transport, &how)
		results <- result{session, err}
	}()
	abandon := func() {
		if r := <-results; r.session != nil {
			_ = r.session.Close()
		}
	}
	select {
	case r := <-results:
		return r.session, r.err
	case <-time.After(u.router.options.ConnectTimeout):
		go abandon()
		return nil, fmt.Errorf("did not answer within %s", u.router.options.ConnectTimeout)
	case <-link.ended:
		go abandon()
		return nil, errors.New("ended")
	case <-ctx.Done():
		go abandon()
		return nil, ctx.Err()
	}
}

func (u *upstream) watch(ctx context.Context, client *mcp.ClientSession, link *link) error {
	closed := make(chan error, 1)
	go func() { closed <- client.Wait() }()
	changed := u.changed
	var rested <-chan time.Time
	for {
		select {
		case <-rested:
			changed = u.changed
		case <-changed:
			// Pause before the next update, because a server may announce changes without end.
			changed, rested = nil, time.After(u.router.options.ListPause)
			// If the update fails, the router still offers the items of the last successful update.
			if err := u.list(ctx, client); err != nil && ctx.Err() == nil {
				u.note(err)
			}
		case err := <-closed:
			if err == nil {
				err = errors.New("closed the connection")
			}
			return link.explain(err)
		case <-link.ended:
			return link.explain(errors.New("ended"))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// explain returns the server's exit reason if there is one, because err only says that the
// connection ended.
func (l *link) explain(err error) error {
	if l.transient != nil && l.transient() {
		return transientError{err}
	}
	if l.ended == nil {
		return err
	}
	select {
	case <-l.ended:
		return l.reason()
	case <-time.After(exitReasonTimeout):
		return err
	}
}

// closeClient closes the MCP session, but waits at most closeTimeout for the server.
func closeClient(client *mcp.ClientSession) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = client.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}

func (u *upstream) attach(client *mcp.ClientSession) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.session = client
	if client != nil {
		u.connects++
	}
}

// note records the server's problem. If err is nil, the server has no problem.
func (u *upstream) note(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failure = ""
	if err != nil {
		u.failure = u.router.describe(err)
	}
}

func (u *upstream) connected() (*mcp.ClientSession, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.session != nil:
		return u.session, nil
	case u.failure != "":
		return nil, fmt.Errorf("is not connected: %s", u.failure)
	default:
		return nil, errors.New("is not connected yet")
	}
}

func (u *upstream) health() session.ToolServer {
	u.mu.Lock()
	defer u.mu.Unlock()
	health := session.ToolServer{
		Name: u.name, Kind: u.kind, State: session.ToolServerConnecting, Error: u.failure,
		Restarts: max(0, u.connects-1),
		Tools:    len(u.offers.tools), Prompts: len(u.offers.prompts),
		Resources: len(u.offers.resources) + len(u.offers.templates),
	}
	switch {
	case u.session != nil:
		health.State = session.ToolServerConnected
	case u.failure != "":
		health.State = session.ToolServerFailed
	}
	return health
}
