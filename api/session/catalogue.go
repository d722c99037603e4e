package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Agent is an entry of the operator's agent catalogue: a program that works on a session's first message.
type Agent struct {
	Name string `json:"name,omitempty"`
	// Command of the agent. Each argument is a template of an AgentInput; one that renders to nothing is left out.
	Command []string `json:"command,omitempty"`
	// Env of the agent, beside what every agent gets. The values are templates in the same way, and may take the value of
	// a variable that the agent gets anyway: {{env "LLM_API_KEY"}}.
	Env map[string]string `json:"env,omitempty"`
	// Image that sessions of this agent run in, where the settings name none.
	Image string `json:"image,omitempty"`
}

// Catalogue holds agents by their names.
type Catalogue map[string]Agent

// ParseCatalogue reads the data of the catalogue's ConfigMap: each key is the name of an agent, each value an
// Agent as YAML or JSON. It refuses what could not run: unknown fields, and templates that do not render.
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

// Names of the agents, sorted.
func (c Catalogue) Names() []string { return slices.Sorted(maps.Keys(c)) }

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
