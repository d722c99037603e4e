// Package launch starts the agent of a session.
package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/process"
)

// Start runs the agent in dir. What it prints goes to output.
func Start(entry *session.Agent, input session.AgentInput, env []string, dir string,
	output io.WriteCloser) (*process.Child, error) {
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
	child, err := process.Start(cmd, func(*process.Child) { _ = output.Close() })
	if err != nil {
		return nil, fmt.Errorf("the agent %s cannot be started: %w", entry.Name, err)
	}
	return child, nil
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
