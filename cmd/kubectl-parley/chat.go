package main

import (
	"bufio"
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

// chat is `kubectl parley chat`.
type chat struct {
	genericiooptions.IOStreams
	talking

	mu    sync.Mutex
	state session.State
	// failure is what went wrong since this command began, and began: a turn has begun since with a
	// message that came since.
	failure error
	began   bool
	// told is the error that was shown last, until a state is: that of a failed turn says it again.
	told string
	// sent are the messages of which there was no event yet, and waiting those that no turn has
	// taken up since this command began, by their events.
	sent    int
	waiting []int
	// over: nothing more is typed. unsent are the lines that were, for nothing.
	over   bool
	unsent int
	// last is the event up to which everything had happened before, and shown is closed when that
	// is shown: an answer is one to what is seen.
	last  int
	shown chan struct{}
	// seen is the last event that was shown; -1 where none was.
	seen int
	// calls are the calls of tools that nothing came of yet, as they were shown, by their ids, and
	// latest is the one that nothing was shown after.
	calls  map[string]string
	latest string
}

// lastWords is how long a talk that is over waits for what came with its end.
const lastWords = 5 * time.Second

func newChat(p *plugin) *cobra.Command {
	c := &chat{IOStreams: p.IOStreams, shown: make(chan struct{}), seen: -1, calls: map[string]string{}}
	cmd := p.named(&cobra.Command{
		Use:   "chat NAME",
		Short: "Talk with a session's agent",
		Long: `Show what happens in a session, and send what you type as messages.

An action that waits for you is confirmed with y and rejected with n. /pause and /resume do that,
and Ctrl-C leaves; the session goes on. A slash and a word is a command; with a space before it, it
is a message.

It ends where the session is stopped, and says why.

Where the input ends, the command ends with the agent's turn, and fails if a turn that it began
failed, or a line could not be sent. If it sends nothing, it ends as the turn that it watched. What
failed before is shown and does not count.`,
		Example: `  kubectl parley chat parser
  echo "Add a test" | kubectl parley chat parser`,
	}, c.run)
	c.addFlags(cmd)
	return cmd
}

func (c *chat) run(ctx context.Context, cluster *cluster, name string) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	user, err := c.as(ctx, cluster, name, silent)
	if err != nil {
		return err
	}
	if c.last, err = user.last(ctx, name); err != nil {
		return err
	}
	if c.last < 0 {
		close(c.shown)
	}
	if err := c.talk(ctx, user, name); err != nil || interrupted(ctx) {
		return err
	}
	c.hearOut(ctx, user, name)
	return c.outcome()
}

// talk until the input has ended and the agent has nothing to do, or the context ends.
func (c *chat) talk(whole context.Context, user *person, name string) error {
	ctx, cancel := context.WithCancelCause(whole)
	defer cancel(nil)
	go func() {
		select {
		case <-c.shown:
		case <-ctx.Done():
			return
		}
		if err := c.read(ctx, user, name); err != nil {
			cancel(err)
		}
	}()
	err := user.follow(ctx, name, -1, c.show)
	if cause := context.Cause(ctx); err == nil && !interrupted(whole) && !errors.Is(cause, errDone) {
		err = cause
	}
	return err
}

// hearOut shows what there is after the event that ended the talk: an error may come after the
// agent's state. Where the facade cannot tell, what is known is all.
func (c *chat) hearOut(ctx context.Context, user *person, name string) {
	ctx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	last, err := user.last(ctx, name)
	if err != nil || last <= c.seen {
		return
	}
	_ = user.follow(ctx, name, c.seen, func(e *session.Event) bool {
		c.show(e)
		return e.ID >= last
	})
}

// outcome of a talk that is over.
func (c *chat) outcome() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.failure != nil:
		return c.failure
	case c.unsent > 0:
		return fmt.Errorf("lines that were not sent: %d", c.unsent)
	}
	return nil
}

// read what the user types.
func (c *chat) read(ctx context.Context, user *person, name string) error {
	lines := bufio.NewReader(c.In)
	for {
		line, err := lines.ReadString('\n')
		if strings.TrimSpace(line) != "" {
			if err := c.say(ctx, user, name, line); err != nil {
				c.locked(func() { c.unsent++ })
				fmt.Fprintln(c.ErrOut, "error:", printable(err.Error()))
			}
		}
		if errors.Is(err, io.EOF) {
			return c.ended()
		}
		if err != nil {
			return err
		}
	}
}

func (c *chat) locked(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// errDone ends a command whose input has ended, with the agent's turn.
var errDone = errors.New("done")

// ended says that nothing more is typed.
func (c *chat) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.idle() {
		return errDone
	}
	return nil
}

// idle: the agent has nothing to do.
func (c *chat) idle() bool {
	switch c.state {
	case session.StateAwaiting, session.StateFinished, session.StateError, session.StateStopped:
		return c.sent == 0 && len(c.waiting) == 0
	}
	return false
}

// say a line: an answer to what the agent asks, a wish, or a message.
func (c *chat) say(ctx context.Context, user *person, name, line string) error {
	text := strings.TrimSpace(line)
	asked, state := false, session.State("")
	c.locked(func() { asked = c.state == session.StateConfirmation })
	switch {
	case asked && (text == "y" || text == "yes"):
		state = session.StateConfirmed
	case asked && (text == "n" || text == "no"):
		state = session.StateRejected
	case asked:
		return errors.New("the agent waits for y or n")
	case isCommand(line) && text == "/pause":
		state = session.StatePaused
	case isCommand(line) && text == "/resume":
		state = session.StateRunning
	case isCommand(line):
		return fmt.Errorf("there is no command %s, only /pause and /resume; a space before it makes it a message", text)
	}
	if state != "" {
		return user.send(ctx, name, session.ActionChangeState, map[string]any{"agent_state": string(state)})
	}
	c.locked(func() { c.sent++ })
	err := user.send(ctx, name, session.ActionMessage, map[string]any{"content": text, "image_urls": []string{}})
	if err != nil {
		c.locked(func() { c.sent = max(0, c.sent-1) })
	}
	return err
}

// isCommand: a line is a slash and a word. A path or a comment is a message, and so is what a space
// comes before.
func isCommand(line string) bool {
	rest, slash := strings.CutPrefix(line, "/")
	word, _, _ := strings.Cut(strings.TrimRight(rest, "\r\n"), " ")
	return slash && word != "" && !strings.Contains(word, "/")
}

// show an event, and say whether nothing more is waited for.
func (c *chat) show(e *session.Event) (enough bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pass(e)
	switch {
	case e.IsUserMessage():
		fmt.Fprintf(c.Out, "> %s\n", indented(e.Text()))
		if e.ID > c.last {
			c.sent = max(0, c.sent-1)
			c.waiting = append(c.waiting, e.ID)
		}
	case e.Action == session.ActionMessage:
		fmt.Fprintf(c.Out, "%s\n", printable(e.Text()))
	case e.Action == session.ActionRun:
		command, _ := e.Args["command"].(string)
		c.call(e, "$ "+command)
	case e.StateOf() != "":
		c.turn(e)
	case e.Observation == session.ObservedError:
		c.told = e.Message
		if e.Content != nil && *e.Content != "" {
			c.told = *e.Content // of which the message is the first line
		}
		fmt.Fprintf(c.Out, "! %s\n", indented(c.told))
		c.fail(e, e.Message)
	case e.Observation == session.ObservedNotice:
		fmt.Fprintf(c.Out, "! %s\n", indented(e.Message))
	case e.Action != "" && e.Action != session.ActionSystem && e.Action != session.ActionChangeState:
		c.call(e, e.Message)
	case e.Content != nil && *e.Content != "":
		fmt.Fprintf(c.Out, "    %s\n", strings.ReplaceAll(strings.TrimSpace(printable(*e.Content)), "\n", "\n    "))
	}
	c.seen = e.ID
	if e.ID == c.last {
		close(c.shown)
	}
	return c.over && c.idle()
}

// pass on from the call that was shown last, and from one that something came of.
func (c *chat) pass(e *session.Event) {
	if e.StateOf() != "" {
		return
	}
	c.latest = ""
	if e.ToolCall != nil && e.Observation != "" {
		delete(c.calls, e.ToolCall.ID)
	}
}

// call shows what the agent does.
func (c *chat) call(e *session.Event, text string) {
	line := "  " + indented(text)
	fmt.Fprintln(c.Out, line)
	if e.ToolCall != nil {
		c.calls[e.ToolCall.ID], c.latest = line, e.ToolCall.ID
	}
}

// ask whether the agent may do what it asks about: that stands just above, whatever else it does
// meanwhile.
func (c *chat) ask(e *session.Event) {
	id := ""
	if e.ToolCall != nil {
		id = e.ToolCall.ID
	}
	switch line, known := c.calls[id]; {
	case !known:
		fmt.Fprintln(c.Out, "! What it would do is not known here: it did not say. Reject it if in doubt.")
	case id != c.latest:
		fmt.Fprintln(c.Out, line)
	}
	fmt.Fprintln(c.Out, "? Do it? y or n")
}

// turn follows the agent's state.
func (c *chat) turn(e *session.Event) {
	c.state = e.StateOf()
	switch {
	case e.Meta == nil:
	case e.Meta.Turn != nil:
		c.begin(*e.Meta.Turn)
	case e.Meta.Withdrawn != nil:
		c.waiting = nil // none is taken up before there is another
	}
	reason, _ := e.Extras["reason"].(string)
	switch c.state {
	case session.StateConfirmation:
		c.ask(e)
	case session.StateError:
		if reason != "" && reason != c.told {
			fmt.Fprintf(c.Out, "! %s\n", indented(reason))
		}
		c.fail(e, reason)
	case session.StatePaused:
		fmt.Fprintln(c.Out, "! paused; /resume goes on")
	}
	c.told = ""
}

// begin the turn of a message.
func (c *chat) begin(message int) {
	c.waiting = slices.DeleteFunc(c.waiting, func(other int) bool { return other <= message })
	if !c.began && message > c.last {
		c.began, c.failure = true, nil // that was the end of an earlier turn
	}
}

// fail for a reason, which may be empty, unless that happened before this command began.
func (c *chat) fail(e *session.Event, reason string) {
	switch {
	case e.ID <= c.last:
	case reason != "":
		c.failure = fmt.Errorf("the agent's turn failed: %s", oneLine(reason))
	case c.failure == nil:
		c.failure = errors.New("the agent's turn failed")
	}
}

// indented is what is printable of a text, its lines under one another.
func indented(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(printable(text)), "\n", "\n  ")
}
