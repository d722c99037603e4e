package driver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/version"
	"github.com/parley-dev/parley/cmd/runtime/launch"
	"github.com/parley-dev/parley/cmd/runtime/process"
)

const (
	// initializeTimeout bounds the initialize request. sessionTimeout is longer, because the agent
	// may replay a long history when it opens a session.
	initializeTimeout = 2 * time.Minute
	sessionTimeout    = 5 * time.Minute
	stopGrace         = 10 * time.Second
	// drain is how long the runtime still reads the agent's output after the agent has exited.
	drain = 2 * time.Second
)

type agentProcess struct {
	*process.Child
	name    string
	conn    *acp.Conn
	can     acp.AgentCapabilities
	session string
	// lostSession is set if the agent could not resume its earlier ACP session and works in a new
	// session. It is cleared as soon as a prompt for the new session contains the history.
	lostSession bool
	said        *tail
}

// ensureAgent starts the agent if it is not running, and opens an ACP session. It resumes the
// earlier session if the agent can do that.
func (d *Driver) ensureAgent(ctx context.Context) error {
	if d.agent != nil {
		select {
		case <-d.agent.conn.Done():
			d.agent.stop()
		case <-d.agent.Ended:
		default:
			return nil
		}
	}
	running, err := d.startAgent()
	if err != nil {
		return err
	}
	d.agent = running
	if err = d.greet(ctx); err == nil {
		err = d.openSession(ctx)
	}
	if err != nil {
		running.stop()
		return running.explain(err)
	}
	return nil
}

func (d *Driver) startAgent() (*agentProcess, error) {
	command, env, err := launch.Render(d.Doc.Agent, d.Input, d.Env)
	if err != nil {
		return nil, err
	}
	cmd := process.Command(d.Dir, env, command[0], command[1:]...)
	process.Confine(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	said := &tail{texts: d.texts}
	output := tee(d.Output(d.Doc.Agent.Name), said)
	cmd.Stdout, cmd.Stderr = theirs, output
	c := &agentProcess{name: d.Doc.Agent.Name, conn: acp.NewConn(out, in), said: said}
	c.Child, err = process.Start(cmd, func(*process.Child) {
		select {
		case <-c.conn.Done():
		case <-time.After(drain): // a child process of the agent may still hold the pipe
		}
		_, _ = out.Close(), output.Close()
	})
	_ = theirs.Close()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel() // requests of the agent that are in flight need no answer
		if err := c.conn.Serve(ctx, d); err != nil && !errors.Is(err, os.ErrClosed) {
			d.Log.Warn("reading messages of the agent failed", "error", err)
		}
	}()
	return c, nil
}

func (d *Driver) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, initializeTimeout)
	defer cancel()
	var answer acp.InitializeResult
	err := d.agent.conn.Call(ctx, acp.MethodInitialize, acp.InitializeParams{
		ProtocolVersion: acp.Version,
		ClientCapabilities: map[string]any{"fs": map[string]bool{"readTextFile": false, "writeTextFile": false},
			"terminal": false},
		ClientInfo: acp.Info{Name: "parley", Version: version.Parley},
	}, &answer)
	if err != nil {
		return err
	}
	if answer.ProtocolVersion != acp.Version {
		return fmt.Errorf("it speaks version %d of the Agent Client Protocol instead of %d", answer.ProtocolVersion,
			acp.Version)
	}
	d.agent.can = answer.AgentCapabilities
	return nil
}

func (d *Driver) openSession(ctx context.Context) error {
	request := acp.SessionParams{Cwd: d.Dir, MCPServers: []acp.MCPServer{}, Meta: acp.Meta{}}
	if d.Archive != nil {
		request.Meta[acp.MetaAsks] = true
	}
	if d.agent.can.MCPCapabilities.HTTP {
		request.MCPServers = append(request.MCPServers, acp.MCPServer{Type: "http", Name: "parley", URL: d.ToolsURL,
			Headers: []acp.Header{}})
	} else {
		d.Notice("The agent " + d.Doc.Agent.Name + " cannot use the session's tools: it does not support MCP servers over " +
			"HTTP.")
	}
	d.mu.Lock()
	last := d.history.session
	d.mu.Unlock()
	if last != "" {
		err := d.resumeSession(ctx, last, request)
		if err == nil {
			return nil
		}
		d.Log.Info("the agent cannot resume its session", "error", err)
	}
	if last != "" || d.LostRecord {
		d.agent.lostSession = true
		request.Meta[acp.MetaReplayed] = true // a recording is replayed once per conversation
	}
	d.mu.Lock()
	d.translator = newTranslator(d.texts) // a new session may reuse tool call IDs
	d.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	var answer acp.NewSessionResult
	if err := d.agent.conn.Call(ctx, acp.MethodNewSession, request, &answer); err != nil {
		return err
	}
	switch {
	case answer.SessionID == "":
		return errors.New("its answer to session/new has no sessionId")
	case len(answer.SessionID) > maxID:
		return fmt.Errorf("its session ID has %d bytes; the limit is %d", len(answer.SessionID), maxID)
	}
	d.agent.session = answer.SessionID
	return nil
}

// resumeSession loads or resumes an ACP session, depending on the agent's capabilities. The agent
// may replay updates. Only updates that the journal lacks are recorded.
func (d *Driver) resumeSession(ctx context.Context, last string, request acp.SessionParams) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	request.SessionID = last
	method := acp.MethodLoadSession
	exact := d.agent.can.ExactReplay()
	switch {
	case d.Doc.Agent.Forgets:
		return errors.New("its catalogue entry sets the field forgets, so it cannot resume sessions")
	case exact:
	case d.agent.can.CanResume():
		method = acp.MethodResumeSession
	case !d.agent.can.LoadSession:
		return errors.New("it can neither load nor resume a session")
	}
	d.mu.Lock()
	d.loading, d.exact, d.replayedSeq = true, exact, 0
	d.translator = newTranslator(d.texts)
	d.mu.Unlock()
	err := d.agent.conn.Call(ctx, method, request, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loading = false
	if err != nil {
		return err
	}
	h := d.history
	switch recorded := h.lastSession == d.texts.id(last); {
	case exact && h.turn >= 0 && h.outdated:
		// The agent's memory may have been saved before the agent's last tool call. The agent would
		// then repeat this call.
		return errors.New("the agent's saved memory may lack its last action")
	case exact && recorded && d.replayedSeq < h.lastSeq:
		// The agent's memory is from an older snapshot. Its next updates would reuse sequence
		// numbers that are already in the journal.
		return errors.New("its memory is older than the journal")
	case !recorded && d.replayedSeq == 0 && h.turns > h.sessionTurns && (exact || h.turn >= 0 && h.sessionTurns == 1):
		// An earlier attempt opened this session to replace a lost session. That attempt may have
		// ended before the agent received the history, so the next prompt must contain the history.
		// An agent with exact replay ignores a prompt for a turn that it has already begun, so it
		// does not receive the history twice.
		d.agent.lostSession = true
	}
	d.agent.session = last
	return nil
}

// Request implements acp.Handler.
func (d *Driver) Request(ctx context.Context, method string, params json.RawMessage) func() (any, error) {
	if method != acp.MethodRequestPermission {
		return acp.NoMethod(method)
	}
	return func() (any, error) {
		answer, err := d.permission(ctx, params)
		d.archive(ctx)
		return answer, err
	}
}

// archive waits until the archive has stored the journal. The record of the work then survives the
// loss of the pod.
func (d *Driver) archive(ctx context.Context) {
	if d.Archive != nil {
		d.Archive(ctx)
	}
}

// Notification implements acp.Handler. It records the agent's updates.
func (d *Driver) Notification(method string, params json.RawMessage) {
	if method != acp.MethodUpdate {
		return // other notifications are ignored
	}
	var notification struct {
		SessionID string          `json:"sessionId"`
		Update    json.RawMessage `json:"update"`
	}
	if json.Unmarshal(params, &notification) != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.loading && !d.exact {
		return
	}
	events, seq, err := d.translator.take(notification.Update)
	if err != nil {
		d.Log.Warn("an update from the agent cannot be parsed", "error", err)
		return
	}
	events = slices.DeleteFunc(events, func(e session.Event) bool { return d.superfluous(&e) })
	if seq > 0 {
		d.replayedSeq = max(d.replayedSeq, seq)
		in := d.texts.id(notification.SessionID)
		events = d.history.unrecorded(in, seq, events)
		for i := range events {
			meta := cmp.Or(events[i].Meta, &session.EventMeta{})
			meta.Session, meta.Seq = in, seq
			events[i].Meta = meta
		}
	}
	_ = d.record(events...) // Run checks d.broken
	if d.Archive != nil && slices.ContainsFunc(events, func(e session.Event) bool { return e.Action != "" }) {
		go d.archive(context.Background()) // an agent that does not request permission may act at once
	}
}

// superfluous reports whether an event must not be recorded; d.mu is held. The result of a rejected
// tool call is superfluous, because the rejection is already recorded as its result.
func (d *Driver) superfluous(e *session.Event) bool {
	switch {
	case isDelivery(e):
		return !d.delivers(e)
	case e.Observation == session.ObservedState:
		return !d.history.showsRetry(e)
	}
	return e.Observation != "" && e.ToolCall != nil && d.history.rejected[e.ToolCall.ID]
}

// unrecorded returns those events of a replayed update that no earlier attempt recorded.
func (h *history) unrecorded(in string, seq int, events []session.Event) []session.Event {
	switch {
	case in != h.lastSession || seq > h.lastSeq:
		return events
	case seq < h.lastSeq:
		return nil
	}
	return events[min(h.atSeq, len(events)):]
}

// Noise implements acp.Handler. It logs lines that are not protocol messages.
func (d *Driver) Noise(line string) { d.Log.Info("the agent printed", "line", d.texts.line(line)) }

// remembers reports whether the agent resumes an interrupted turn without a prompt.
func (c *agentProcess) remembers() bool { return c.can.ExactReplay() && !c.lostSession }

func (c *agentProcess) stop() { c.Stop(stopGrace) }

// explain replaces the error of a closed connection with the reason for the agent's exit.
func (c *agentProcess) explain(err error) error {
	if errors.Is(err, acp.ErrClosed) {
		return errors.New(c.exitReason())
	}
	return err
}

// exitReason describes the agent's exit. It adds the agent's last line of output, which usually
// names the cause.
func (c *agentProcess) exitReason() string {
	how := "closed its connection"
	select {
	case <-c.Ended:
		how = cmp.Or(c.Failure(), "exited before its turn ended")
	case <-time.After(stopGrace):
	}
	if last := c.said.lastLine(); last != "" {
		how += ": " + last
	}
	return "the agent " + c.name + " " + how
}
