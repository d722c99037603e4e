package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Protocol is the protocol of an agent.
type Protocol string

const (
	// ProtocolACP is the Agent Client Protocol, on the agent's standard input and output.
	ProtocolACP Protocol = "acp"
	// ProtocolCommand is a program that reads one message from its standard input and exits when it
	// has finished. It is the default.
	ProtocolCommand Protocol = "command"
)

// Agent is an entry of the operator's agent catalogue: a program that works on a session's
// messages.
type Agent struct {
	Name     string   `json:"name,omitempty"`
	Protocol Protocol `json:"protocol,omitempty"`
	// Confirms says that the agent can ask for permission before each action that changes
	// something. A session in confirmation mode does not start if its agent cannot do this.
	Confirms bool `json:"confirms,omitempty"`
	// Forgets says that the agent cannot resume its ACP session after a restart, even if the agent
	// says that it can. The agent gets a new ACP session and a transcript instead.
	Forgets bool `json:"forgets,omitempty"`
	// NeedsModel says that the agent cannot work without a model in the settings.
	NeedsModel bool `json:"needsModel,omitempty"`
	// Responses says that the agent calls models through OpenAI's responses API. Models that are
	// available only through this API are not offered to other agents.
	Responses bool `json:"responses,omitempty"`
	// Command is the agent's command line. Each argument is a template, which is rendered with an
	// AgentInput. An argument that renders to an empty text is omitted.
	Command []string `json:"command,omitempty"`
	// Env contains further variables for the agent. The values are also templates, and can refer to
	// the variables that every agent has: {{env "LLM_API_KEY"}}.
	Env map[string]string `json:"env,omitempty"`
	// Image is the image for sessions of this agent if the settings name no image.
	Image string `json:"image,omitempty"`
}

// DefaultAgent is the agent for UserSettings that name no agent. The catalogue may lack this agent.
// OpenHands clients always send this name.
const DefaultAgent = v1alpha1.DefaultAgent

// Catalogue holds agents by their names.
type Catalogue map[string]Agent

// ParseCatalogue reads the data of the catalogue's ConfigMap. Each key is the name of an agent, and
// each value is an Agent as YAML or JSON. Unknown fields and templates that do not render are
// errors.
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
		return agent, fmt.Errorf("name: is %q, but must equal the key %q in the ConfigMap", agent.Name, name)
	}
	return agent, agent.validate()
}

func (a *Agent) validate() error {
	switch a.Protocol {
	case "", ProtocolACP, ProtocolCommand:
	default:
		return fmt.Errorf("protocol: %q is unknown; must be %s or %s", a.Protocol, ProtocolACP, ProtocolCommand)
	}
	if a.Confirms && a.Protocol != ProtocolACP {
		return fmt.Errorf("confirms: requires the protocol %s", ProtocolACP)
	}
	for i, argument := range a.Command {
		if err := validateTemplate(argument, nil); err != nil {
			return fmt.Errorf("command[%d]: %w", i, err)
		}
	}
	if len(a.Command) > 0 && a.Command[0] == "" {
		return errors.New("command[0]: must be the name or the path of a program")
	}
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("env: %q is not a valid variable name", name)
		}
		if err := validateTemplate(a.Env[name], noVariables); err != nil {
			return fmt.Errorf("env[%s]: %w", name, err)
		}
	}
	return nil
}
