// Package launch starts the agent of a session.
package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/process"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

// Start runs the agent in dir.
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

// Render returns the agent's command and environment. The environment consists of the given
// variables and the variables from the agent's catalogue entry.
func Render(entry *session.Agent, input session.AgentInput, given []string) (command, env []string, err error) {
	command, own, err := entry.Render(input, Lookup(given))
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

// Environment returns the environment for all agents: the session's own environment, the user's
// variables and the session's paths. If a variable occurs more than once, the last value applies.
// The only secrets in the environment are the user's custom secrets and, if the settings allow it,
// the repository's token.
func Environment(own []string, doc *session.Document, store *secrets.Store, input session.AgentInput) []string {
	env := WithoutProxy(own)
	set := func(name, value string) {
		if name != "" && value != "" {
			env = append(env, name+"="+value)
		}
	}
	set("LLM_MODEL", input.Model)
	set("LLM_BASE_URL", input.BaseURL)
	set("LLM_API_KEY", session.PlaceholderKey)
	if r := doc.Repository; r != nil && r.TokenFile != "" && ptr.Deref(doc.Settings.ExposeGitTokenToAgent, false) {
		set(session.TokenVariable(r.Provider), store.Key(r.TokenFile))
	}
	for _, secret := range doc.CustomSecrets {
		set(secret.Name, store.Value(secret.ValueFile))
	}
	set("PARLEY_CONVERSATION", doc.Conversation)
	set("PARLEY_WORKSPACE", input.Workspace)
	set("PARLEY_REPOSITORY", input.Repository)
	set("PARLEY_MESSAGE_FILE", input.MessageFile)
	set("PARLEY_INSTRUCTIONS_FILE", input.InstructionsFile)
	set("PARLEY_REPLAY_FILE", input.ReplayFile)
	set("PARLEY_MCP_URL", input.RouterURL)
	set("PARLEY_MCP_CONFIG", input.MCPConfigFile)
	set("PARLEY_MAX_BUDGET", input.MaxBudget)
	set("PARLEY_MAX_ITERATIONS", input.MaxIterations.String())
	return env
}

// WithoutProxy makes programs connect to the loopback address directly, because HTTP proxies cannot
// reach it.
func WithoutProxy(own []string) []string {
	const local = "127.0.0.1,localhost"
	env, value := append([]string{}, own...), Lookup(own)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		if value(name) == "" {
			continue
		}
		for _, except := range []string{"NO_PROXY", "no_proxy"} {
			env = append(env, except+"="+strings.Trim(value(except)+","+local, ","))
		}
		break
	}
	return env
}

// Lookup returns a function that returns the value of a variable in env.
func Lookup(env []string) func(string) string {
	values := map[string]string{}
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}
