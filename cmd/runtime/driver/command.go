package driver

import (
	"context"
	"io"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/launch"
)

// commandGrace is how long a plain command may take to exit after a stop signal.
const commandGrace = 15 * time.Second

// Interrupted is the error for a plain command that an earlier attempt started.
const Interrupted = "the session was interrupted: an earlier attempt started this command, and no command runs " +
	"twice. The work may be partly done or not done at all. To run it again, start a new conversation"

// runCommand runs a plain command for a message. The command's output becomes the agent's message.
func (d *Driver) runCommand(ctx context.Context, t task) ending {
	if t.resumed {
		return failedTurn(Interrupted)
	}
	d.setup(ctx, t)
	switch {
	case ctx.Err() != nil:
		return ending{} // the attempt is stopping and starts no work
	case d.stopping(t):
		return d.stoppedUnprompted(t)
	}
	if err := d.add(turnEvent(t.message, "")); err != nil {
		return failedTurn(err.Error())
	}
	d.archive(ctx)
	said := message{d}
	running, err := launch.Start(d.Doc.Agent, d.Input, d.Env, d.Dir, tee(d.Output(""), said))
	if err != nil {
		return ending{state: session.StateError, reason: err.Error(), notStarted: true, withdrawn: &t.message}
	}
	select {
	case <-running.Ended:
	case <-ctx.Done():
		running.Stop(commandGrace)
		return ending{}
	}
	if text := said.take(); text != "" {
		if err := d.add(agentMessage(text, d.texts.line(text))); err != nil {
			return failedTurn(err.Error())
		}
	}
	if failure := running.Failure(); failure != "" {
		return failedTurn("the agent " + d.Doc.Agent.Name + " " + failure)
	}
	return ending{state: session.StateFinished}
}

func tee(log io.WriteCloser, kept io.Writer) io.WriteCloser {
	return struct {
		io.Writer
		io.Closer
	}{io.MultiWriter(kept, log), log}
}
