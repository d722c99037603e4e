// Package launch starts the agent of a session.
package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/process"
)

// stopGrace is how long an agent may take to end when it is asked to.
const stopGrace = 15 * time.Second

// Agent is a running agent.
type Agent struct {
	name   string
	cmd    *exec.Cmd
	ended  chan struct{}
	result error
}

// Start runs the agent in dir. What it prints goes to output.
func Start(entry *session.Agent, input session.AgentInput, env []string, dir string, output io.WriteCloser) (*Agent,
	error) {
	command, env, err := Render(entry, input, env)
	if err != nil {
		return nil, fmt.Errorf("the agent %s: %w", entry.Name, err)
	}
	cmd := process.Command(dir, env, command[0], command[1:]...)
	process.Confine(cmd)
	cmd.Stdout, cmd.Stderr = output, output
	message, err := os.Open(input.MessageFile)
	if err != nil {
		return nil, fmt.Errorf("the agent %s: %w", entry.Name, err)
	}
	defer message.Close()
	cmd.Stdin = message
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the agent %s cannot be started: %w", entry.Name, err)
	}
	a := &Agent{name: entry.Name, cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		a.result = cmd.Wait()
		_ = output.Close()
	}()
	return a, nil
}

// Render the command of an agent, and its environment: its own variables beside those that every
// agent gets.
func Render(entry *session.Agent, input session.AgentInput, given []string) (command, env []string, err error) {
	command, own, err := entry.Render(input, lookup(given))
	if err != nil {
		return nil, nil, err
	}
	if len(command) == 0 {
		return nil, nil, errors.New("its command is empty")
	}
	env = slices.Clone(given)
	for name, value := range own {
		env = append(env, name+"="+value)
	}
	return command, env, nil
}

// Ended is closed when the agent ended.
func (a *Agent) Ended() <-chan struct{} { return a.ended }

// Termination is how the agent ended. It says nothing of what the agent printed.
func (a *Agent) Termination() session.Termination {
	<-a.ended
	var exit *exec.ExitError
	switch {
	case a.result == nil, errors.Is(a.result, exec.ErrWaitDelay):
		return session.Termination{Reason: v1alpha1.ReasonCompleted, Message: fmt.Sprintf("the agent %s is done", a.name)}
	case !errors.As(a.result, &exit):
		return failed("the agent %s: %v", a.name, a.result)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return failed("the agent %s was ended by signal %d (%s)", a.name, status.Signal(), status.Signal())
	}
	return failed("the agent %s ended with status %d", a.name, exit.ExitCode())
}

func failed(format string, args ...any) session.Termination {
	return session.Termination{Reason: v1alpha1.ReasonFailed, Message: fmt.Sprintf(format, args...)}
}

// Stop ends the agent, and what it started.
func (a *Agent) Stop() { process.Stop(a.cmd, a.ended, stopGrace) }
