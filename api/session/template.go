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

// AgentInput is what the templates of an Agent can use. What is not set renders to nothing, but
// what is true or false to that. It holds no secret: a command line can be read by every process.
type AgentInput struct {
	// MessageFile holds the first message; it is also the agent's standard input. InstructionsFile
	// holds the instructions of the session and ReplayFile the replay, where there are any.
	MessageFile, InstructionsFile, ReplayFile string
	// Images that go with the first message, in their order, each a URL or the path of a file.
	// ImageURLs are those of them that are URLs, ImageFiles the others.
	Images, ImageURLs, ImageFiles List
	// Model such as provider/model, ModelName what follows the slash, and BaseURL where the session
	// serves the model's API, without the version: that of OpenAI is at /v1 below it.
	Model, ModelName, BaseURL string
	// RouterURL serves the session's tools. MCPConfigFile says so to agents that read a file of MCP
	// servers.
	RouterURL, MCPConfigFile string
	// MaxIterations and MaxBudget (in US dollars) are the limits of a task; zero and empty mean
	// none.
	MaxIterations Count
	MaxBudget     string
	// Workspace is the session's directory. Repository is the clone's directory in it, where there
	// is one.
	Workspace, Repository string
	// Branch that was asked for, if any.
	Branch string
	// Conversation is the name of the session.
	Conversation string
	// Language of answers, as a language tag.
	Language string
	// ConfirmationMode is set when the agent is to ask before it acts.
	ConfirmationMode bool
	// RateActions is set when it is to ask only before those actions that it rates as dangerous.
	RateActions bool
	// ContextWindow of the model in tokens; zero where it is not known. Condense is set when a
	// history that is too long for it is to be summarised.
	ContextWindow Count
	Condense      bool
	// Programs is the directory of Parley's own programs.
	Programs string
	// Resumed is set when the repository was there already from an earlier run of this session.
	Resumed bool
}

// Count renders to nothing where it is zero.
type Count int32

func (c Count) String() string {
	if c == 0 {
		return ""
	}
	return strconv.Itoa(int(c))
}

// List renders to its items with spaces between them.
type List []string

func (l List) String() string { return strings.Join(l, " ") }

// variables looks up the environment that an agent gets anyway.
type variables func(name string) string

func noVariables(string) string { return "" }

// Render fills the templates of the agent. Of env it asks the variables that an environment
// template names.
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

// parseTemplate knows the function env only where env is given: what it yields may be secret.
func parseTemplate(text string, env variables) (*template.Template, error) {
	t := template.New("template")
	if env != nil {
		t.Funcs(template.FuncMap{"env": env})
	}
	return t.Parse(text)
}

// validateTemplate refuses a template that would fail, whatever the session: one that names an
// unknown field in any of its branches, or does with a field what cannot be done with it.
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
		RateActions: true, ContextWindow: 1, Condense: true, Programs: "p",
	})
	return err
}

// checkFields looks at every field that a template names, also where a run would not come by.
func checkFields(node parse.Node) error {
	if reflect.ValueOf(node).IsNil() {
		return nil // such as the list of a missing else
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
		return fmt.Errorf("there is no field .%s", strings.Join(path, "."))
	}
	return nil
}
