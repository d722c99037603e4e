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
	// startAttempts is the number of connection attempts before the session stops waiting for a server.
	startAttempts = 4
	// stable is how long a server must run to reset its retry delay.
	stable = time.Minute
	// closeTimeout is how long a connection may take to close.
	closeTimeout = 2 * time.Second
	// exitReasonTimeout limits the wait for a server's exit status after its connection closed.
	exitReasonTimeout = 2 * time.Second
)

// link is a connection to a server.
type link struct {
	transport mcp.Transport
	// ended is closed when the server exits; nil if that cannot be observed.
	ended <-chan struct{}
	// reason returns why the server exited.
	reason func() error
	// transient reports whether the network failed, and not the server itself; nil for stdio servers.
	transient func() bool
	// cut closes the link and stops the server if it is a child process.
	cut func()
}

// transientError is an error of the network, so the next attempt may succeed.
type transientError struct{ error }

// dialer creates a link, which lasts at most until ctx is done.
type dialer func(ctx context.Context) (*link, error)

// upstream is one tool server.
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

// run connects to the server, and reconnects until ctx is done.
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
		// Many agents read the tool list only once, so a single lost packet must not make a server
		// missing.
		if transient := (transientError{}); !errors.As(err, &transient) || attempt >= startAttempts {
			settled()
		}
		if time.Since(started) > stable {
			delay = u.router.options.FirstRetry
		}
		select {
		// Jitter spreads the reconnects of sessions that lost the same server.
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

// watch updates the server's lists until the connection ends.
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
			// A server may announce changes without end.
			changed, rested = nil, time.After(u.router.options.ListPause)
			// After an error, the earlier lists stay offered.
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

// explain prefers the exit reason of the server, because err only says that the connection ended.
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

// closeClient closes the session without waiting for a server that does not answer.
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

// note records the server's problem; nil means that the server has none.
func (u *upstream) note(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failure = ""
	if err != nil {
		u.failure = u.router.describe(err)
	}
}

// connected returns the session with the server, or the reason why there is no session.
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
