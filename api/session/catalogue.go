package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Protocol is how an agent is spoken with.
type Protocol string

const (
	// ProtocolACP is the Agent Client Protocol, on the agent's standard input and output.
	ProtocolACP Protocol = "acp"
	// ProtocolCommand is a program that reads one message from its standard input and exits when it
	// is done. It is the protocol where none is named.
	ProtocolCommand Protocol = "command"
)

// Agent is an entry of the operator's agent catalogue: a program that works on a session's
// messages.
type Agent struct {
	Name string `json:"name,omitempty"`
	// Protocol that it speaks.
	Protocol Protocol `json:"protocol,omitempty"`
	// Confirms says that it asks before each action that changes something, when it is told to. An
	// agent that does not is refused in confirmation mode.
	Confirms bool `json:"confirms,omitempty"`
	// Forgets says that it cannot go on with its session once it was started anew, whatever it says
	// itself. It is given a new one then, and told what happened.
	Forgets bool `json:"forgets,omitempty"`
	// Command of the agent. Each argument is a template of an AgentInput; one that renders to
	// nothing is left out.
	Command []string `json:"command,omitempty"`
	// Env of the agent, beside what every agent gets. The values are templates in the same way, and
	// may take the value of a variable that the agent gets anyway: {{env "LLM_API_KEY"}}.
	Env map[string]string `json:"env,omitempty"`
	// Image that sessions of this agent run in, where the settings name none.
	Image string `json:"image,omitempty"`
}

// DefaultAgent is the one of settings that name none, if the catalogue has it. It is the name that
// clients of the existing service always send.
const DefaultAgent = "CodeActAgent"

// Catalogue holds agents by their names.
type Catalogue map[string]Agent

// ParseCatalogue reads the data of the catalogue's ConfigMap: each key is the name of an agent,
// each value an Agent as YAML or JSON. It refuses what could not run: unknown fields, and templates
// that do not render.
func ParseCatalogue(data map[string]string) (Catalogue, error) {
	catalogue := make(Catalogue, len(data))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(data)) {
		agent, err := parseAgent(name, data[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("agent %s: %w", name, err))
			continue
		}
		catalogue[name] = agent
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return catalogue, nil
}

func parseAgent(name, text string) (Agent, error) {
	agent := Agent{Name: name}
	if err := yaml.UnmarshalStrict([]byte(text), &agent); err != nil {
		return agent, err
	}
	if agent.Name != name {
		return agent, fmt.Errorf("says that its name is %q", agent.Name)
	}
	return agent, agent.validate()
}

func (a *Agent) validate() error {
	switch a.Protocol {
	case "", ProtocolACP, ProtocolCommand:
	default:
		return fmt.Errorf("protocol: %q is not known; it is %s or %s", a.Protocol, ProtocolACP, ProtocolCommand)
	}
	if a.Confirms && a.Protocol != ProtocolACP {
		return fmt.Errorf("confirms: only an agent that speaks %s can ask", ProtocolACP)
	}
	for i, argument := range a.Command {
		if err := validateTemplate(argument, nil); err != nil {
			return fmt.Errorf("command[%d]: %w", i, err)
		}
	}
	if len(a.Command) > 0 && a.Command[0] == "" {
		return errors.New("command[0]: names no program")
	}
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("env: %q is no name of a variable", name)
		}
		if err := validateTemplate(a.Env[name], noVariables); err != nil {
			return fmt.Errorf("env[%s]: %w", name, err)
		}
	}
	return nil
}
