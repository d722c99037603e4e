package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/process"
)

const (
	// setupScript is a script in the repository that prepares the container.
	setupScript  = ".openhands/setup.sh"
	setupTimeout = 10 * time.Minute
)

// setup runs the repository's setup script before the agent starts. It runs the script in each
// attempt, because each attempt has a new container.
func (d *Driver) setup(ctx context.Context, t task) {
	d.mu.Lock()
	lost := d.closeActions(restartedAction, func(id string) bool { return id != setupScript })
	_ = d.record(lost...) // Run checks d.broken
	d.mu.Unlock()
	script := filepath.Join(d.Dir, setupScript)
	if info, err := os.Stat(script); d.prepared || d.Doc.Repository == nil || err != nil || !info.Mode().IsRegular() {
		return
	}
	d.prepared = true
	if d.add(session.Event{
		Source: session.FromEnvironment, Action: session.ActionRun, Message: "Running command: " + setupScript,
		Args: map[string]any{argCommand: setupScript, argThought: ""}, ToolCall: &session.ToolCall{ID: setupScript},
	}) != nil {
		return // Run checks d.broken
	}
	output, code := d.runSetup(ctx, t, script)
	if ctx.Err() != nil {
		return
	}
	output, success := d.texts.text(output), code == 0
	extras := map[string]any{argCommand: setupScript, "metadata": map[string]any{"exit_code": code}}
	if code == exitInterrupted {
		extras[extraInterrupted] = true
	}
	_ = d.add(session.Event{
		Source: session.FromEnvironment, Observation: session.ActionRun, Message: "Command " + setupScript + " executed",
		Content: &output, Success: &success,
		ToolCall: &session.ToolCall{ID: setupScript},
		Extras:   extras,
	})
}

// runSetup runs the script until it ends, the timeout expires or the user stops the turn.
func (d *Driver) runSetup(ctx context.Context, t task, script string) (output string, code int) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		d.await(ctx, func() bool { return d.mustStop(t.message) })
	}()
	kept := tail{texts: d.texts}
	cmd := process.Command(d.Dir, d.Env, "sh", script)
	process.Confine(cmd)
	cmd.Stdout = &kept
	cmd.Stderr = &kept
	child, err := process.Start(cmd, func(*process.Child) {})
	if err != nil {
		return fmt.Sprintf("%s cannot be run: %v", setupScript, err), 127
	}
	select {
	case <-child.Ended:
	case <-stopped:
		child.Stop(stopGrace)
		if ctx.Err() == nil {
			return kept.String() + "\n[stopped]", exitInterrupted
		}
		return kept.String() + fmt.Sprintf("\n[timed out after %s]", setupTimeout), 124
	}
	if exit, exited := errors.AsType[*exec.ExitError](child.Err); exited {
		code = exit.ExitCode()
	} else if child.Failure() != "" {
		code = 1
	}
	return kept.String(), code
}
