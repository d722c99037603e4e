// Package tools implements the agent's tools: a shell, a file editor, a task list, and the tools of
// MCP servers.
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

// Tool is a tool that the model may call.
type Tool struct {
	llm.Tool
	describe func(input json.RawMessage) Description
	run      func(ctx context.Context, input json.RawMessage) Outcome
	// asksRisk is set if the agent added the risk parameter to the tool's schema. The agent removes
	// this parameter from each call before it runs the tool.
	asksRisk bool
}

// Description describes a call for the client.
type Description struct {
	Title     string
	Kind      string
	Locations []acp.Location
	// Acts is set if the call changes something. Such a call may need the user's confirmation, and
	// is never repeated after a crash.
	Acts bool
}

// Outcome is the result of a call.
type Outcome struct {
	Text    string
	IsError bool
	Images  []llm.Image
	// Raw is additional output for the client.
	Raw any
	// Diff is the change that an edit made. It is nil if the change is too large.
	Diff *acp.ToolContent
	// Plan is the task list, if the call set it.
	Plan []acp.PlanEntry
	// Shell is the state of the shell, if a command changed it.
	Shell string
	// Waiting is set if the call waited for a command that is still running.
	Waiting bool
	// Paths are the absolute paths of files and directories that the call may have used.
	Paths []string
}

func failed(format string, args ...any) Outcome {
	return Outcome{Text: fmt.Sprintf(format, args...), IsError: true}
}

// These are the kinds of calls. Clients may show each kind differently.
const (
	kindExecute = "execute"
	kindRead    = "read"
	kindEdit    = "edit"
	kindThink   = "think"
	kindOther   = "other"
)

// These are the names of the agent's own tools.
const (
	BashName   = "execute_bash"
	EditorName = "str_replace_editor"
	TasksName  = "task_tracker"
)

// Set holds all tools of a session.
type Set struct {
	own        []*Tool
	servers    *Servers
	rateAction bool
}

// NewSet returns the tools of a session.
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

func find(tools []*Tool, name string) *Tool {
	for _, tool := range tools {
		if tool.Name == name {
			return tool
		}
	}
	return nil
}

// Find returns the tool with this name, or nil.
func (s *Set) Find(ctx context.Context, name string) *Tool { return find(s.Offered(ctx), name) }

const riskParameter = "security_risk"

// askRisk adds a parameter with which the model rates the risk of each call.
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
		"description": "How dangerous this action is. LOW: only reads, or changes only files of the task. MEDIUM: changes " +
			"more, but can be undone. " +
			"HIGH: deletes or publishes data, sends it elsewhere, changes the system, or cannot be undone.",
	}
	schema["properties"] = properties
	required, _ := schema["required"].([]any)
	schema["required"] = append(slices.Clone(required), riskParameter)
	t.Schema, t.asksRisk = schema, true
}

// Describe returns the description of a call, and its input for the client. An action without the
// required risk rating counts as HIGH.
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

// Run executes a call.
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
	decoder.UseNumber() // preserve large numbers
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	if fields == nil {
		fields = map[string]any{}
	}
	return fields, nil
}

func schema(required []any, properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

func text(description string) map[string]any {
	return map[string]any{"type": "string", "description": description}
}
