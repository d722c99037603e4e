package session

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
)

// AgentInput contains the values for the templates of an Agent. It contains no secrets, because
// every process can read the rendered command line. Unset values, except booleans, render to an
// empty text.
type AgentInput struct {
	// MessageFile is a file with the first message, which is also the agent's standard input.
	// InstructionsFile is a file with the session's instructions, and ReplayFile is a file with the
	// replay. A field is empty if there is no such file.
	MessageFile, InstructionsFile, ReplayFile string
	// Images are the images of the first message in order, each as a URL or a file path. ImageURLs
	// contains only the URLs, and ImageFiles contains only the file paths.
	Images, ImageURLs, ImageFiles List
	// Model is provider/model; ModelName is the part without the provider. BaseURL is the URL
	// of the session's model API without the version: OpenAI's API is at /v1 below it.
	Model, ModelName, BaseURL string
	// RouterURL serves the session's tools. MCPConfigFile is a file with this URL, for agents that
	// read their MCP servers from a file.
	RouterURL, MCPConfigFile string
	// MaxIterations and MaxBudget (in US dollars) limit a turn; an empty budget means no limit.
	MaxIterations Count
	MaxBudget     string
	// Workspace is the session's directory. Repository is the directory of the clone in it, if any.
	Workspace, Repository string
	Branch                string
	// Conversation is the name of the Conversation.
	Conversation string
	// Language is the language of the agent's messages, as a language tag.
	Language string
	// ConfirmationMode is set if the agent must ask before it acts.
	ConfirmationMode bool
	// RateActions is set if the agent must ask only before actions that it rates as dangerous.
	RateActions bool
	// ContextWindow is the model's context window in tokens; zero if unknown. Condense is set if
	// the agent should summarize a history that exceeds the context window.
	ContextWindow Count
	Condense      bool
	// ReasoningEffort and Temperature are options of the model. An empty text means the provider's
	// default.
	ReasoningEffort, Temperature string
	// Programs is the directory of Parley's programs.
	Programs string
	// Resumed is set if the clone exists from an earlier attempt of this session.
	Resumed bool
}

// Count renders to an empty text if it is zero.
type Count int32

func (c Count) String() string {
	if c == 0 {
		return ""
	}
	return strconv.Itoa(int(c))
}

// List renders to its items, separated by spaces.
type List []string

func (l List) String() string { return strings.Join(l, " ") }

// variables returns the value of one of the environment variables that every agent gets.
type variables func(name string) string

func noVariables(string) string { return "" }

// Render renders the templates of the agent. The templates of environment variables can look up
// other variables with the function env.
func (a *Agent) Render(input AgentInput, env func(name string) string) (command []string, environment map[string]string,
	err error) {
	for i, argument := range a.Command {
		text, err := render(argument, nil, input)
		if err != nil {
			return nil, nil, fmt.Errorf("command[%d]: %w", i, err)
		}
		if text != "" || argument == "" {
			command = append(command, text)
		}
	}
	environment = make(map[string]string, len(a.Env))
	for name, value := range a.Env {
		text, err := render(value, env, input)
		if err != nil {
			return nil, nil, fmt.Errorf("env[%s]: %w", name, err)
		}
		if text != "" || value == "" {
			environment[name] = text
		}
	}
	return command, environment, nil
}

func render(text string, env variables, input AgentInput) (string, error) {
	parsed, err := parseTemplate(text, env)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if err := parsed.Execute(&out, input); err != nil {
		return "", err
	}
	return out.String(), nil
}

// parseTemplate defines the template function env only if the parameter env is not nil. Arguments
// of the command cannot use the function, because its results may be secret.
func parseTemplate(text string, env variables) (*template.Template, error) {
	t := template.New("template")
	if env != nil {
		t.Funcs(template.FuncMap{"env": env})
	}
	return t.Parse(text)
}

// validateTemplate rejects a template with an unknown field, in any branch, or with an invalid use
// of a field.
func validateTemplate(text string, env variables) error {
	parsed, err := parseTemplate(text, env)
	if err != nil {
		return err
	}
	for _, t := range parsed.Templates() {
		if t.Tree == nil {
			continue
		}
		if err := checkFields(t.Root); err != nil {
			return err
		}
	}
	_, err = render(text, env, AgentInput{
		MessageFile: "m", InstructionsFile: "i", ReplayFile: "r", Images: []string{"u", "f"}, ImageURLs: []string{"u"},
		ImageFiles: []string{"f"}, Model: "p/m", ModelName: "m", BaseURL: "b",
		RouterURL: "r", MCPConfigFile: "m", MaxIterations: 1, MaxBudget: "1", Workspace: "w", Repository: "r",
		Branch: "b", Conversation: "c", Language: "l", ConfirmationMode: true, Resumed: true,
		RateActions: true, ContextWindow: 1, Condense: true, Programs: "p", ReasoningEffort: "high", Temperature: "1",
	})
	return err
}

// checkFields rejects unknown fields in all branches, even in branches that are not executed.
func checkFields(node parse.Node) error {
	if reflect.ValueOf(node).IsNil() {
		return nil // such as a missing else
	}
	switch n := node.(type) {
	case *parse.ListNode:
		return checkAll(n.Nodes)
	case *parse.PipeNode:
		return checkAll(n.Cmds)
	case *parse.CommandNode:
		return checkAll(n.Args)
	case *parse.ActionNode:
		return checkFields(n.Pipe)
	case *parse.TemplateNode:
		return checkFields(n.Pipe)
	case *parse.IfNode:
		return checkBranch(&n.BranchNode)
	case *parse.WithNode:
		return checkBranch(&n.BranchNode)
	case *parse.RangeNode:
		return checkBranch(&n.BranchNode)
	case *parse.ChainNode:
		return checkFields(n.Node)
	case *parse.FieldNode:
		return checkField(n.Ident)
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			return checkField(n.Ident[1:])
		}
	}
	return nil
}

func checkBranch(n *parse.BranchNode) error {
	return errors.Join(checkFields(n.Pipe), checkFields(n.List), checkFields(n.ElseList))
}

func checkAll[N parse.Node](nodes []N) error {
	for _, node := range nodes {
		if err := checkFields(node); err != nil {
			return err
		}
	}
	return nil
}

func checkField(path []string) error {
	if _, known := reflect.TypeFor[AgentInput]().FieldByName(path[0]); !known || len(path) > 1 {
		return fmt.Errorf("no field .%s", strings.Join(path, "."))
	}
	return nil
}
