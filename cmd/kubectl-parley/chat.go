package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/parley-dev/parley/api/session"
)

type chat struct {
	genericiooptions.IOStreams
	facadeFlags

	mu    sync.Mutex
	state session.State
	// failure is the last failure of a turn since this command started.
	failure error
	// turnBegan is set when a turn starts for a message that was sent after this command started.
	turnBegan bool
	// lastError is the error that was printed last. The state event of a failed turn contains the
	// same error, which must not be printed again. Each state event clears lastError.
	lastError string
	// unconfirmed counts sent messages that have no event yet. queued contains the event IDs of
	// messages that the agent has not received yet. Both ignore messages that were sent before this
	// command started.
	unconfirmed int
	queued      []int
	// stopped is the printed reason why the session is stopped; empty while it runs.
	stopped string
	// inputEnded is set at the end of the input. unsent counts lines that could not be sent.
	inputEnded bool
	unsent     int
	// historyEnd is the ID of the last event before this command started. historyShown is closed
	// when that event is shown. The chat reads input only after that, so that the user does not
	// answer a question that is not shown yet.
	historyEnd   int
	historyShown chan struct{}
	// located is closed when historyEnd is known. Without an archive, the history of a stopped
	// session is known only after the session has started.
	located chan struct{}
	// lastShown is the ID of the last event shown; -1 if there is none.
	lastShown int
	// openCalls holds the tool calls without a result, by call ID. lastCall is the ID of the call
	// that was printed last; empty if something else was printed after the call.
	openCalls map[string]openCall
	lastCall  string
	// writing is the part of the agent's unfinished message that is on the screen. outputs contains
	// the printed part of the output of each running command, by the event ID of the command's
	// action. midLine is set while the cursor is at the end of the unfinished message.
	writing printed
	outputs map[int]*printed
	midLine bool
	// question is the question on the screen; nil if there is none.
	question *question
	// approvals are the approvals that are not revoked, oldest first.
	approvals []approval
}

// openCall is a tool call without a result. line is the printed, short text of the call. whole is
// the full text.
type openCall struct {
	line, whole string
}

// drainTimeout limits the wait for events after the end of a chat.
const drainTimeout = 5 * time.Second

func newChat(p *plugin) *cobra.Command {
	c := &chat{IOStreams: p.IOStreams, historyShown: make(chan struct{}), located: make(chan struct{}), lastShown: -1,
		openCalls: map[string]openCall{}, outputs: map[int]*printed{}}
	cmd := p.named(&cobra.Command{
		Use:   "chat NAME",
		Short: "Chat with the agent of a session",
		Long: `Show the events of a session, and send each line that you type as a message.

An action that needs confirmation is printed in full. Answer y or n, or n REASON to tell the agent
why. Answer a to also approve the similar actions that the question describes. A line that was typed
before the question appeared does not answer it. /approvals lists the approvals of similar actions,
and /revoke N revokes approval number N.

/pause pauses the agent, and /resume resumes it. To send a message that looks like a command, put a
space before the slash. Ctrl-C leaves the chat; the session continues. If the session is stopped,
the chat prints the reason. Your next message starts the session again.

If the input ends, for example because it is a pipe, the chat waits until the agent's turn ends. It
fails if a line could not be sent, or if a turn for one of the lines failed. If there were no lines,
it fails if the current turn fails. Failures of earlier turns are shown, but do not count.`,
		Example: `  kubectl parley chat parser
  echo "Add a test" | kubectl parley chat parser`,
	}, c.run)
	c.addFlags(cmd)
	return cmd
}

func (c *chat) run(ctx context.Context, cluster *cluster, name string) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	user, err := c.connect(ctx, cluster, name, silent)
	if err != nil {
		return err
	}
	if isTerminal(c.Out) {
		user.preview = c.preview
	}
	user.asleep = c.asleep
	if c.historyEnd, err = user.lastEvent(ctx, name); err == nil {
		close(c.located)
	} else {
		if user.stopReason(ctx, name) == "" {
			return err
		}
		c.historyEnd = -1 // no archive has the events of this session
	}
	if c.historyEnd < 0 {
		close(c.historyShown)
	}
	if err := c.converse(ctx, user, name); err != nil || interrupted(ctx) {
		return err
	}
	c.showRest(ctx, user, name)
	return c.outcome()
}

// converse runs until the input has ended and the agent is idle, or until the context ends.
func (c *chat) converse(whole context.Context, user *facadeUser, name string) error {
	ctx, cancel := context.WithCancelCause(whole)
	defer cancel(nil)
	go func() {
		select {
		case <-c.historyShown:
		case <-ctx.Done():
			return
		}
		if err := c.read(ctx, user, name); err != nil {
			cancel(err)
		}
	}()
	err := user.follow(ctx, name, -1, func(e *session.Event) bool {
		c.locateHistory(ctx, user, name)
		return c.show(e)
	})
	if cause := context.Cause(ctx); err == nil && !interrupted(whole) && !errors.Is(cause, errDone) {
		err = cause
	}
	return err
}

func (c *chat) outcome() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failure != nil:
		return c.failure
	case c.unsent > 0:
		return fmt.Errorf("lines not sent: %d", c.unsent)
	}
	return nil
}

func (c *chat) read(ctx context.Context, user *facadeUser, name string) error {
	for line := range c.readLines() {
		if strings.TrimSpace(line.text) != "" {
			if err := c.sendLine(ctx, user, name, line); err != nil {
				c.locked(func() { c.unsent++ })
				fmt.Fprintln(c.ErrOut, "error:", printable(err.Error()))
			}
		}
		if errors.Is(line.err, io.EOF) {
			return c.endInput()
		}
		if line.err != nil {
			return line.err
		}
	}
	return nil
}

// asleep prints why the session is stopped. The reason is empty if the session is not stopped. The
// result is false if the session is stopped and the input has ended: no further message can then
// start the session.
func (c *chat) asleep(reason string) (wait bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reason != "" && c.inputEnded {
		return false
	}
	if reason != "" && reason != c.stopped {
		fmt.Fprintf(c.Out, "! stopped (%s); send a message to resume\n", printable(reason))
	}
	c.stopped = reason
	return true
}

func (c *chat) locked(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// errDone ends the chat when the input and the agent's turn have ended.
var errDone = errors.New("done")

// endInput records the end of the input, and returns errDone if the agent is idle.
func (c *chat) endInput() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inputEnded = true
	if c.idle() {
		return errDone
	}
	return nil
}

// idle reports whether the agent has no turn in progress and no message to handle.
func (c *chat) idle() bool { return c.atRest() && c.unconfirmed == 0 && len(c.queued) == 0 }

// atRest reports whether the agent waits for a message, or has ended.
func (c *chat) atRest() bool {
	switch c.state {
	case session.StateAwaiting, session.StateFinished, session.StateError, session.StateStopped:
		return true
	}
	return false
}

// sendLine sends a line as an answer, a command or a message.
func (c *chat) sendLine(ctx context.Context, user *facadeUser, name string, line typedLine) error {
	text := strings.TrimSpace(line.text)
	asked, working := false, false
	c.locked(func() {
		asked = c.question != nil
		working = c.state != "" && !c.atRest()
	})
	switch {
	case isCommand(line.text):
		return c.command(ctx, user, name, text)
	case line.question != noQuestion:
		return c.answer(ctx, user, name, line.question, text)
	case asked, working && isBareAnswer(line.text):
		return errTypedAhead
	}
	c.locked(func() {
		c.unconfirmed++
		if c.stopped != "" {
			fmt.Fprintln(c.ErrOut, "waking up…")
		}
	})
	err := user.send(ctx, name, session.ActionMessage, map[string]any{"content": text, "image_urls": []string{}})
	if err != nil {
		c.locked(func() { c.unconfirmed = max(0, c.unconfirmed-1) })
		return err
	}
	c.locateMessage(ctx, user, name, text)
	return nil
}

// show prints an event, and reports whether the chat is done.
func (c *chat) show(e *session.Event) (done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeCall(e)
	if e.Action != session.ActionMessage || e.IsUserMessage() {
		c.endLine()
	}
	switch {
	case e.IsUserMessage():
		fmt.Fprintf(c.Out, "> %s\n", indented(e.Text()))
		if e.ID > c.historyEnd {
			c.unconfirmed = max(0, c.unconfirmed-1)
			c.queued = append(c.queued, e.ID)
		}
	case e.Action == session.ActionMessage:
		c.showMessage(printable(e.Text()))
	case e.Action == session.ActionRun:
		c.showCall(e, callText(e))
	case e.StateOf() != "":
		c.updateState(e)
	case e.Observation == session.ObservedError:
		c.lastError = e.Message
		if e.Content != nil && *e.Content != "" {
			c.lastError = *e.Content // e.Message is only the first line
		}
		fmt.Fprintf(c.Out, "! %s\n", indented(c.lastError))
		c.recordFailure(e, e.Message)
	case e.Observation == session.ObservedNotice:
		fmt.Fprintf(c.Out, "! %s\n", indented(e.Message))
	case e.Action == session.ActionChangeState, e.Action == session.ActionRevoke:
		c.trackApprovals(e)
	case e.Action != "" && e.Action != session.ActionSystem:
		c.showCall(e, e.Message)
	default:
		c.showResult(e)
	}
	c.lastShown = e.ID
	if e.ID == c.historyEnd {
		c.endHistory()
	}
	return c.inputEnded && c.idle()
}

// closeCall clears lastCall, unless the event is a change of the agent's state. If the event is the
// result of a call, closeCall also removes the call from openCalls.
func (c *chat) closeCall(e *session.Event) {
	if e.StateOf() != "" {
		return
	}
	c.lastCall = ""
	if e.ToolCall != nil && e.Observation != "" {
		delete(c.openCalls, e.ToolCall.ID)
	}
}

func (c *chat) showResult(e *session.Event) {
	var before printed
	if e.Cause != nil && c.outputs[*e.Cause] != nil {
		before = *c.outputs[*e.Cause]
		delete(c.outputs, *e.Cause)
	}
	if e.Content != nil && *e.Content != "" {
		if rest, continues := before.rest(strings.TrimRight(outputLines(*e.Content), "\n") + "\n"); !continues || rest != "" {
			c.printOutput(rest)
		}
	}
	if interrupted, _ := e.Extras["interrupted"].(bool); interrupted {
		fmt.Fprintln(c.Out, "    (interrupted)")
	}
}

func (c *chat) showCall(e *session.Event, text string) {
	line := "  " + indented(text)
	fmt.Fprintln(c.Out, line)
	if e.ToolCall != nil {
		whole := "  " + strings.ReplaceAll(callText(e), "\n", "\n  ")
		c.openCalls[e.ToolCall.ID], c.lastCall = openCall{line, whole}, e.ToolCall.ID
	}
}

func (c *chat) updateState(e *session.Event) {
	c.state, c.question = e.StateOf(), nil
	switch {
	case e.Meta == nil:
	case e.Meta.Turn != nil:
		c.beginTurn(*e.Meta.Turn)
	case e.Meta.Delivered != nil:
		c.beginTurn(*e.Meta.Delivered) // the message became part of the current turn
	case e.Meta.Withdrawn != nil:
		c.queued = nil // queued messages wait until the user sends another one
	}
	reason, _ := e.Extras["reason"].(string)
	switch c.state {
	case session.StateConfirmation:
		c.askConfirmation(e)
	case session.StateError:
		if reason != "" && reason != c.lastError {
			fmt.Fprintf(c.Out, "! %s\n", indented(reason))
		}
		c.recordFailure(e, reason)
	case session.StateRunning:
		if reason != "" { // the agent waits before it calls the model again
			fmt.Fprintf(c.Out, "! %s\n", indented(reason))
		}
	case session.StatePaused:
		fmt.Fprintln(c.Out, "! paused; continue with /resume")
	}
	c.lastError = ""
}

// beginTurn records that the agent received a message: a turn for the message started, or the
// message became part of a running turn.
func (c *chat) beginTurn(message int) {
	c.queued = slices.DeleteFunc(c.queued, func(other int) bool { return other <= message })
	if !c.turnBegan && message > c.historyEnd {
		c.turnBegan, c.failure = true, nil // the failure belongs to an earlier turn
	}
}

// recordFailure records a failure of the turn, unless the failure happened before this command
// started. The reason may be empty.
func (c *chat) recordFailure(e *session.Event, reason string) {
	switch {
	case e.ID <= c.historyEnd:
	case reason != "":
		c.failure = fmt.Errorf("the agent's turn failed: %s", oneLine(reason))
	case c.failure == nil:
		c.failure = errors.New("the agent's turn failed")
	}
}

// indented makes a text printable and indents all lines after the first line.
func indented(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(printable(text)), "\n", "\n  ")
}
