package driver

import (
	"context"
	"io"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/launch"
)

// commandGrace is how long a plain command may take to end when it is asked to.
const commandGrace = 15 * time.Second

// Interrupted is why a message is not worked on again.
const Interrupted = "the session was interrupted: an earlier attempt took up the message, and no message is taken up " +
	"twice. " +
	"The work may be done in part, or may not have been done. To have it done, start a new conversation"

// runCommand gives the message to a plain command. What it prints is its answer.
func (d *Driver) runCommand(ctx context.Context, t task) ending {
	if t.again {
		return ending{state: session.StateError, reason: Interrupted}
	}
	d.setup(ctx)
	if ctx.Err() != nil {
		return ending{} // what is to stop begins no work
	}
	d.mu.Lock()
	err := d.record(turnEvent(t.message, ""))
	d.mu.Unlock()
	if err != nil {
		return ending{state: session.StateError, reason: err.Error()}
	}
	said := tail{texts: d.texts}
	running, err := launch.Start(d.Doc.Agent, d.Input, d.Env, d.Dir, tee(d.Output(""), &said))
	if err != nil {
		return ending{state: session.StateError, reason: err.Error(), withdrawn: &t.message}
	}
	select {
	case <-running.Ended:
	case <-ctx.Done():
		running.Stop(commandGrace)
		return ending{}
	}
	if text := d.texts.text(said.String()); text != "" {
		d.mu.Lock()
		err = d.record(session.Event{
			Source: session.FromAgent, Action: session.ActionMessage, Message: d.texts.line(text),
			Args: map[string]any{"content": text, "image_urls": []string{}, "wait_for_response": false},
		})
		d.mu.Unlock()
	}
	if err != nil {
		return ending{state: session.StateError, reason: err.Error()}
	}
	if failure := running.Failure(); failure != "" {
		return ending{state: session.StateError, reason: "the agent " + d.Doc.Agent.Name + " " + failure}
	}
	return ending{state: session.StateFinished}
}

// tee writes to the log and keeps the end.
func tee(log io.WriteCloser, kept *tail) io.WriteCloser {
	return struct {
		io.Writer
		io.Closer
	}{io.MultiWriter(kept, log), log}
}
