package driver

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// toolCall is what an agent tells of a call of a tool, at once or bit by bit.
type toolCall struct {
	ID        string          `json:"toolCallId"`
	Title     string          `json:"title"`
	ToolKind  string          `json:"kind"`
	Status    string          `json:"status"`
	RawInput  json.RawMessage `json:"rawInput"`
	RawOutput json.RawMessage `json:"rawOutput"`
	Locations []struct {
		Path string `json:"path"`
	} `json:"locations"`
	// Name of the tool, from agents that tell it.
	Name string `json:"name"`
	// Meta is what it tells beside the protocol.
	Meta map[string]any `json:"_meta"`
}

// beside is what an agent tells at this path beside the protocol; nil where it does not.
func (t *toolCall) beside(path ...string) any {
	var value any = t.Meta
	for _, key := range path {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}
	return value
}

// name of the tool: that of the protocol, or of those who tell it beside: qwen, and Parley's own
// agent.
func (t *toolCall) toolName() string {
	parley, _ := t.beside(acp.MetaTool).(string)
	qwen, _ := t.beside("toolName").(string)
	return cmp.Or(parley, qwen, t.Name)
}

// kindExecute is the kind of a tool that runs commands, and commandFields are where its input may
// hold one. kindOther is one that is none of the usual ones.
const (
	kindExecute = "execute"
	kindOther   = "other"
)

var commandFields = []string{argCommand, "cmd"}

// call is all that was told of a call of a tool so far.
type call struct {
	toolCall
	texts
	// input is what the tool is given, by its fields. Clients expect an object, also where there are
	// none.
	input    map[string]any
	content  json.RawMessage
	printed  tail
	exit     *int
	started  bool // there is an action of it
	observed bool // and what came of it
	old      bool // of an earlier turn
}

// known finds the call, and adds what is told of it now.
func (t *translator) known(told *toolCall, content json.RawMessage) *call {
	told.ID = t.id(told.ID)
	c := t.calls[told.ID]
	if c == nil {
		c = &call{texts: t.texts, input: map[string]any{}, printed: tail{texts: t.texts}}
		t.calls[told.ID] = c
	}
	c.ID = told.ID
	c.Title, c.Name = cmp.Or(t.text(told.Title), c.Title), cmp.Or(t.text(told.toolName()), c.Name)
	c.ToolKind, c.Status = cmp.Or(told.ToolKind, c.ToolKind), cmp.Or(told.Status, c.Status)
	if said(told.RawInput) {
		c.RawInput, c.input = told.RawInput, t.fields(told.RawInput)
	}
	if said(told.RawOutput) {
		c.RawOutput = told.RawOutput
	}
	// What is told now stands for all that was told before, and so does an empty list.
	if text := string(bytes.TrimSpace(content)); text != "" && text != "null" {
		c.content = content
	}
	// Codex tells so what a command prints, bit by bit, and how it ended.
	if text, _ := told.beside("terminal_output_delta", "data").(string); text != "" {
		_, _ = c.printed.Write([]byte(text))
	}
	if code, ok := told.beside("terminal_exit", "exit_code").(float64); ok {
		c.exit = ptr.To(int(code))
	}
	if len(told.Locations) > 0 {
		c.Locations = told.Locations
	}
	if c.ToolKind == kindExecute && c.field(commandFields...) == "" && c.field("server") != "" && c.field("tool") != "" {
		c.ToolKind = kindOther // codex calls the tools of others so
	}
	return c
}

// said is whether a value holds anything. Many agents tell a call first, and what it is given
// later.
func said(value json.RawMessage) bool {
	text := string(bytes.TrimSpace(value))
	return text != "" && text != "null" && text != "{}" && text != "[]"
}

// tool records the action once it is known what is called with what, and what came of it once it is
// over.
func (t *translator) tool(told *toolCall, content json.RawMessage) (events []session.Event) {
	if told.ID == "" {
		return nil
	}
	c := t.known(told, content)
	over := c.Status == acp.Completed || c.Status == acp.Failed
	if !c.started && (c.told() || over) {
		events = append(events, c.action(""))
	}
	if over && !c.observed {
		c.observed = true
		events = append(events, c.observation())
	}
	if c.observed { // what it was given and what it brought is on record, and may be much
		c.RawInput, c.RawOutput, c.content, c.exit = nil, nil, nil, nil
		c.input, c.printed = map[string]any{}, tail{texts: t.texts}
	}
	return events
}

// asked is the action of a call that the agent asks about, where it is not recorded yet.
func (t *translator) asked(c *call, confirmation string) []session.Event {
	events := t.flush()
	if !c.started {
		events = append(events, c.action(confirmation))
	}
	return events
}

// digest of what is called with what.
func (c *call) digest() string {
	sum := sha256.New()
	for _, part := range []string{c.ToolKind, c.Name, c.Title, plain(c.RawInput), plain(c.content)} {
		part = c.mask(part)
		_, _ = fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// plain is a value in the one form that does not depend on how it was written.
func plain(value json.RawMessage) string {
	var read any
	if json.Unmarshal(value, &read) != nil {
		return ""
	}
	return encoded(read)
}

// field is the first of these fields of the input that is a text, or a list of words.
func (c *call) field(names ...string) string {
	for _, name := range names {
		switch value := c.input[name].(type) {
		case string:
			if value != "" {
				return value
			}
		case []any:
			var words []string
			for _, word := range value {
				if text, ok := word.(string); ok {
					words = append(words, text)
				}
			}
			return c.text(strings.Join(words, " "))
		}
	}
	return ""
}

// told is whether it is known what the tool is called with. Some agents tell that a call runs
// before they tell that.
func (c *call) told() bool {
	return said(c.RawInput) && (c.ToolKind != kindExecute || c.field(commandFields...) != "")
}

func (c *call) command() string {
	return cmp.Or(c.field(commandFields...), strings.Trim(c.Title, "`"))
}

func (c *call) path() string {
	if path := c.field("path", "file_path", "filePath", "abs_path", "absolute_path"); path != "" {
		return path
	}
	if len(c.Locations) > 0 {
		return c.text(c.Locations[0].Path)
	}
	return c.Title
}

// Risk that the agent says the call has: LOW, MEDIUM, HIGH, or nothing.
func (c *call) risk() string { return strings.ToUpper(c.field("security_risk")) }

func (c *call) name() string { return cmp.Or(c.Name, c.field("tool"), c.Title) }

// action that clients know, by the kind of the tool.
func (c *call) action(confirmation string) session.Event {
	c.started = true
	e := session.Event{Source: session.FromAgent, Message: c.line(c.Title), ToolCall: &session.ToolCall{ID: c.ID,
		Function: c.Name}}
	switch c.ToolKind {
	case kindExecute:
		e.Action, e.Args = session.ActionRun, map[string]any{argCommand: c.command(), argThought: ""}
		e.Message = "Running command: " + c.line(c.command())
	case "read":
		e.Action, e.Args = session.ActionRead, map[string]any{"path": c.path(), argThought: ""}
	case "edit", "delete", "move":
		e.Action, e.Args = session.ActionEdit, map[string]any{"path": c.path(), argThought: ""}
		for name, value := range c.input {
			if _, taken := e.Args[name]; !taken {
				e.Args[name] = value
			}
		}
	case "think":
		e.Action, e.Args = session.ActionThink, map[string]any{argThought: c.Title}
	default:
		e.Message = c.name()
		e.Action, e.Args = session.ActionTool, map[string]any{"name": c.name(), "arguments": c.input, argThought: ""}
	}
	if risk := c.risk(); risk != "" {
		e.Args["security_risk"] = risk
	}
	if confirmation != "" {
		e.Args["confirmation_state"] = confirmation
	}
	return e
}

// result is what came of the call, as text. Of a command it is what it printed, without what an
// agent adds for people.
func (c *call) result() string {
	output, plain := outputOf(c.RawOutput)
	switch told := textOf(c.content); {
	case c.printed.buffer.Len() > 0:
		return c.printed.String()
	case plain && c.ToolKind == kindExecute, told == "":
		return output
	default:
		return told
	}
}

// observation of what came of the call. Its cause is set where it is recorded.
func (c *call) observation() session.Event {
	content := c.text(c.result())
	success := c.Status == acp.Completed
	e := session.Event{Source: session.FromAgent, Message: c.line(c.Title), Content: &content,
		ToolCall: &session.ToolCall{ID: c.ID, Function: c.Name}}
	switch c.ToolKind {
	case kindExecute:
		code := c.exitCode()
		success = success && code == 0
		e.Observation = session.ActionRun
		e.Extras = map[string]any{argCommand: c.command(), "metadata": map[string]any{"exit_code": code}}
		e.Message = "Command " + c.line(c.command()) + " executed"
	case "read":
		e.Observation, e.Extras = session.ActionRead, map[string]any{"path": c.path()}
	case "edit", "delete", "move":
		e.Observation, e.Extras = session.ActionEdit, c.change()
	case "think":
		e.Observation = session.ActionThink
	default:
		e.Message = c.name()
		e.Observation, e.Extras = session.ObservedTool, map[string]any{"name": c.name(), "arguments": c.input}
	}
	e.Success = &success
	return e
}

// exitCode of a command. Agents that do not tell it tell at least whether it failed.
func (c *call) exitCode() int {
	var output struct {
		Snake    *int `json:"exit_code"`
		Camel    *int `json:"exitCode"`
		Metadata struct {
			Exit *int `json:"exit"`
		} `json:"metadata"`
	}
	_ = json.Unmarshal(c.RawOutput, &output)
	if code := cmp.Or(c.exit, output.Snake, output.Camel, output.Metadata.Exit); code != nil {
		return *code
	}
	if c.Status == acp.Failed {
		return 1
	}
	return 0
}

// change of a file, where the agent tells the text before and after.
func (c *call) change() map[string]any {
	extras := map[string]any{"path": c.path()}
	var blocks []struct {
		Type string  `json:"type"`
		Path string  `json:"path"`
		Old  *string `json:"oldText"`
		New  string  `json:"newText"`
	}
	_ = json.Unmarshal(c.content, &blocks)
	for _, block := range blocks {
		if block.Type == "diff" {
			extras["path"], extras["new_content"], extras["prev_exist"] = c.text(block.Path), c.text(block.New), block.Old != nil
			if block.Old != nil {
				extras["old_content"] = c.text(*block.Old)
			}
			break
		}
	}
	return extras
}

// outputOf is the output of a tool as text, in whatever form it came; plain where it is just that.
func outputOf(raw json.RawMessage) (text string, plain bool) {
	if json.Unmarshal(raw, &text) == nil && string(raw) != "null" {
		return text, true
	}
	var fields struct {
		Output *string `json:"output"`
		// Result is codex's, of a tool of others.
		Result struct {
			Content json.RawMessage `json:"content"`
		} `json:"result"`
	}
	_ = json.Unmarshal(raw, &fields) // what is no object has no fields
	if fields.Output != nil {
		return *fields.Output, true
	}
	if text = textOf(fields.Result.Content); text != "" {
		return text, true
	}
	if !said(raw) {
		return "", false
	}
	return string(raw), false
}
