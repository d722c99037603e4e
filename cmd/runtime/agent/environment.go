package agent

import (
	"strings"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

// Environment of the agent: the session's own, then what the user set and the keys that go with it, then where things
// are. Of two variables of one name the later one counts.
func Environment(own []string, doc *session.Document, store *secrets.Store, input session.AgentInput) []string {
	env := append([]string{}, own...)
	set := func(name, value string) {
		if name != "" && value != "" {
			env = append(env, name+"="+value)
		}
	}
	set("LLM_MODEL", input.Model)
	set("LLM_BASE_URL", input.BaseURL)
	set("LLM_API_KEY", store.Key(session.LLMAPIKeyFile))
	set("SEARCH_API_KEY", store.Key(session.SearchAPIKeyFile))
	set("SANDBOX_API_KEY", store.Key(session.SandboxAPIKeyFile))
	if r := doc.Repository; r != nil && r.TokenFile != "" {
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
	set("PARLEY_SESSION_KEY", store.Key(session.KeyFile))
	set("PARLEY_MAX_BUDGET", input.MaxBudget)
	set("PARLEY_MAX_ITERATIONS", input.MaxIterations.String())
	return env
}

// lookup is the value of a variable in an environment.
func lookup(env []string) func(string) string {
	values := map[string]string{}
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}
