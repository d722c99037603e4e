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

	"github.com/spf13/cobra"

	"github.com/parley-dev/parley/api/session"
)

// chat is `kubectl parley chat`.
type chat struct {
	*plugin
	talking

	mu    sync.Mutex
	state session.State
	// reason why the state is an error.
	reason string
	// sent are the messages of which there was no event yet, and waiting those that no turn has taken up since this command
	// began, by their events.
	sent    int
	waiting []int
	// over: nothing more is typed. unsent are the lines that were, for nothing.
	over   bool
	unsent int
	// last is the event up to which everything had happened before, and shown is closed when that is shown: an answer is one to
	// what is seen.
	last  int
	shown chan struct{}
}

func newChat(p *plugin) *cobra.Command {
	c := &chat{plugin: p, shown: make(chan struct{})}
	cmd := &cobra.Command{
		Use:   "chat NAME",
		Short: "Talk with a session's agent",
		Long: `Show what happens in a session, and send what you type as messages.

An action that waits for you is confirmed with y and rejected with n. /pause and /resume do that,
and Ctrl-C leaves; the session goes on. A slash and a word is a command; with a space before it, it
is a message.

Where the input ends, the command ends with the agent's turn, and fails if the turn failed or a line
could not be sent.`,
		Example: `  kubectl parley chat parser
  echo "Add a test" | kubectl parley chat parser`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.completeConversations,
		RunE:              func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args[0]) },
	}
	c.addFlags(cmd)
	return cmd
}

func (c *chat) run(ctx context.Context, name string) error {
	cluster, err := c.connect()
	if err != nil {
		return err
	}
	conv, err := cluster.conversation(ctx, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	user, err := c.as(ctx, cluster, conv)
	if err != nil {
		return err
	}
	if c.last, err = user.last(ctx, name); err != nil {
		return err
	}
	if c.last < 0 {
		close(c.shown)
	}
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
	err = user.follow(ctx, name, c.show)
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if err == nil {
		err = c.outcome()
	}
	return err
}

// outcome of a talk whose input has ended.
func (c *chat) outcome() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.over || !c.idle(): // somebody left
		return nil
	case c.state == session.StateError && c.reason != "":
		return fmt.Errorf("the agent's turn failed: %s", oneLine(c.reason))
	case c.state == session.StateError:
		return errors.New("the agent's turn failed")
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
				c.mu.Lock()
				c.unsent++
				c.mu.Unlock()
				fmt.Fprintln(c.ErrOut, "error:", err)
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

// errDone ends a command whose input has ended, with the agent's turn.
var errDone = context.Canceled

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
	c.mu.Lock()
	asked := c.state == session.StateConfirmation
	c.mu.Unlock()
	state := session.State("")
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
	c.mu.Lock()
	c.sent++
	c.mu.Unlock()
	err := user.send(ctx, name, session.ActionMessage, map[string]any{"content": text, "image_urls": []string{}})
	if err != nil {
		c.mu.Lock()
		c.sent = max(0, c.sent-1)
		c.mu.Unlock()
	}
	return err
}

// isCommand: a line is a slash and a word. A path or a comment is a message, and so is what a space comes before.
func isCommand(line string) bool {
	rest, slash := strings.CutPrefix(line, "/")
	word, _, _ := strings.Cut(strings.TrimRight(rest, "\r\n"), " ")
	return slash && word != "" && !strings.Contains(word, "/")
}

// show an event, and say whether nothing more is waited for.
func (c *chat) show(e *session.Event) (enough bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.IsUserMessage():
		fmt.Fprintf(c.Out, "> %s\n", indented(e.Text()))
		if e.ID > c.last {
			c.sent = max(0, c.sent-1)
			c.waiting = append(c.waiting, e.ID)
		}
	case e.Action == session.ActionMessage:
		fmt.Fprintf(c.Out, "%s\n", e.Text())
	case e.Action == session.ActionRun:
		command, _ := e.Args["command"].(string)
		fmt.Fprintf(c.Out, "  $ %s\n", indented(command))
	case e.StateOf() != "":
		c.turn(e)
	case e.Observation == session.ObservedError, e.Observation == session.ObservedNotice:
		fmt.Fprintf(c.Out, "! %s\n", indented(e.Message))
	case e.Action != "" && e.Action != session.ActionSystem && e.Action != session.ActionChangeState:
		fmt.Fprintf(c.Out, "  %s\n", indented(e.Message))
	case e.Content != nil && *e.Content != "":
		fmt.Fprintf(c.Out, "    %s\n", strings.ReplaceAll(strings.TrimSpace(*e.Content), "\n", "\n    "))
	}
	if e.ID == c.last {
		close(c.shown)
	}
	return c.over && c.idle()
}

// turn follows the agent's state.
func (c *chat) turn(e *session.Event) {
	c.state = e.StateOf()
	c.reason, _ = e.Extras["reason"].(string)
	switch {
	case e.Meta == nil:
	case e.Meta.Turn != nil:
		c.waiting = slices.DeleteFunc(c.waiting, func(message int) bool { return message <= *e.Meta.Turn })
	case e.Meta.Withdrawn != nil:
		c.waiting = nil // none is taken up before there is another
	}
	switch {
	case c.state == session.StateConfirmation:
		fmt.Fprintln(c.Out, "? Do it? y or n")
	case c.state == session.StateError && c.reason != "":
		fmt.Fprintf(c.Out, "! %s\n", indented(c.reason))
	case c.state == session.StatePaused:
		fmt.Fprintln(c.Out, "! paused; /resume goes on")
	}
}

// indented keeps the lines of a text under one another.
func indented(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}
