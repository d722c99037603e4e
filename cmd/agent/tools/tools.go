// Package tools is what the agent can do: run commands, view and edit files, keep a list of tasks,
// and call the tools of servers.
package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
)

// Tool is one that the model is offered.
type Tool struct {
	llm.Tool
	// describe says what a call with this input is about.
	describe func(input json.RawMessage) Description
	run      func(ctx context.Context, input json.RawMessage) Outcome
	// asksRisk says that the agent added the parameter for the risk, and takes it off again.
	asksRisk bool
}

// Description of a call, for the client.
type Description struct {
	Title     string
	Kind      string
	Locations []acp.Location
	// Acts says that the call changes something: it is asked for where the user confirms actions,
	// and never done twice.
	Acts bool
}

// Outcome of a call.
type Outcome struct {
	Text    string
	IsError bool
	Images  []llm.Image
	// Raw is what the client is told besides the text.
	Raw any
	// Diff is what an edit changed, if it is small enough to be told.
	Diff *acp.ToolContent
	// Plan is the list of tasks, where the call set it.
	Plan []acp.PlanEntry
	// Shell is the state of the shell, where a command changed it.
	Shell string
}

func failed(format string, args ...any) Outcome {
	return Outcome{Text: fmt.Sprintf(format, args...), IsError: true}
}

// Kinds of calls, as clients draw them.
const (
	kindExecute = "execute"
	kindRead    = "read"
	kindEdit    = "edit"
	kindThink   = "think"
	kindOther   = "other"
)

// Names of the agent's own tools.
const (
	BashName   = "execute_bash"
	EditorName = "str_replace_editor"
	TasksName  = "task_tracker"
)

// Set is all tools of a session.
type Set struct {
	own        []*Tool
	servers    *Servers
	rateAction bool
}

// NewSet collects the tools.
func NewSet(shell *Shell, dir string, tasks *Tasks, servers *Servers, rateActions bool) *Set {
	s := &Set{servers: servers, rateAction: rateActions}
	for _, tool := range []*Tool{shell.tool(), newEditor(dir), tasks.tool()} {
		if rateActions && tool.Name != TasksName {
			tool.askRisk()
		}
		s.own = append(s.own, tool)
	}
	return s
}

// Offered returns all tools, in an order that stays the same.
func (s *Set) Offered(ctx context.Context) []*Tool {
	offered := slices.Clone(s.own)
	for _, tool := range s.servers.tools(ctx) {
		if find(offered, tool.Name) != nil {
			continue // the agent's own come first
		}
		if s.rateAction && tool.describe(nil).Acts {
			tool.askRisk()
		}
		offered = append(offered, tool)
	}
	return offered
}

func find(tools []*Tool, name string) *Tool {
	for _, tool := range tools {
		if tool.Name == name {
			return tool
		}
	}
	return nil
}

// Find returns the tool of this name, nil if there is none.
func (s *Set) Find(ctx context.Context, name string) *Tool { return find(s.Offered(ctx), name) }

const riskParameter = "security_risk"

// askRisk makes the model rate each call.
func (t *Tool) askRisk() {
	properties, _ := t.Schema["properties"].(map[string]any)
	if _, taken := properties[riskParameter]; taken || t.asksRisk {
		return
	}
	schema, properties := maps.Clone(t.Schema), maps.Clone(properties)
	if properties == nil {
		properties = map[string]any{}
	}
	properties[riskParameter] = map[string]any{
		"type": "string", "enum": []any{"LOW", "MEDIUM", "HIGH"},
		"description": "How dangerous this action is. LOW: reads, or changes files of the task only. MEDIUM: changes more, " +
			"but can be taken back. " +
			"HIGH: deletes or publishes data, sends it elsewhere, changes the system, or cannot be taken back.",
	}
	schema["properties"] = properties
	required, _ := schema["required"].([]any)
	schema["required"] = append(slices.Clone(required), riskParameter)
	t.Schema, t.asksRisk = schema, true
}

// Describe says what a call is about, and what the client is told of its input. A call that should
// say how dangerous it is, and does not, counts as dangerous.
func (t *Tool) Describe(input string) (Description, json.RawMessage) {
	fields, err := decode(input)
	if err != nil {
		raw, _ := json.Marshal(input)
		return Description{Title: t.Name, Kind: kindOther, Acts: true}, raw
	}
	description := t.describe(t.stripped(fields))
	if risk, _ := fields[riskParameter].(string); t.asksRisk && description.Acts && risk != "LOW" && risk != "MEDIUM" {
		fields[riskParameter] = "HIGH"
	}
	raw, _ := json.Marshal(fields)
	return description, raw
}

// Run does a call.
func (t *Tool) Run(ctx context.Context, input string) Outcome {
	fields, err := decode(input)
	if err != nil {
		return failed("The input of this call is not a JSON object; nothing was done. Call the tool again with valid JSON.")
	}
	return t.run(ctx, t.stripped(fields))
}

func (t *Tool) stripped(fields map[string]any) json.RawMessage {
	if t.asksRisk {
		fields = maps.Clone(fields)
		delete(fields, riskParameter)
	}
	raw, _ := json.Marshal(fields)
	return raw
}

func decode(input string) (map[string]any, error) {
	if input == "" {
		input = "{}"
	}
	var fields map[string]any
	decoder := json.NewDecoder(strings.NewReader(input))
	decoder.UseNumber() // a large number must reach a tool as it was written
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	if fields == nil {
		fields = map[string]any{}
	}
	return fields, nil
}

// schema writes the schema of an object.
func schema(required []any, properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

func text(description string) map[string]any {
	return map[string]any{"type": "string", "description": description}
}
