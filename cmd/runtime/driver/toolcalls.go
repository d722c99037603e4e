package driver

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// toolCall is an agent's update about a tool call. A partial update contains only the changed
// fields.
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
	// Name is the tool's name. Some agents do not send it.
	Name string `json:"name"`
	// Meta holds extensions of the protocol.
	Meta map[string]any `json:"_meta"`
}

func (t *toolCall) meta(path ...string) any {
	var value any = t.Meta
	for _, key := range path {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}
	return value
}

// toolName returns the tool's name. Parley's agent and qwen send it in extensions of the protocol.
func (t *toolCall) toolName() string {
	parley, _ := t.meta(acp.MetaTool).(string)
	qwen, _ := t.meta("toolName").(string)
	return cmp.Or(parley, qwen, t.Name)
}

// kindExecute is the kind of tools that run commands. kindOther is the kind of tools that fit no
// other kind.
const (
	kindExecute = "execute"
	kindOther   = "other"
)

type call struct {
	toolCall
	texts
	// input holds the tool's input fields. Clients expect an object, so input is never nil.
	input    map[string]any
	content  json.RawMessage
	printed  tail
	progress json.RawMessage
	exit     *int
	started  bool // the action of the call is recorded
	// shown is the result of display() when the action was recorded. incomplete is set if
	// the recorded action lacks a part of the input.
	shown      string
	incomplete bool
	observed   bool // the result of the call is recorded
	old        bool // the call belongs to an earlier turn
}

func (t *translator) merge(update *toolCall, content json.RawMessage) *call {
	update.ID = t.id(update.ID)
	c := t.calls[update.ID]
	if c == nil {
		c = &call{texts: t.texts, input: map[string]any{}, printed: tail{texts: t.texts}}
		t.calls[update.ID] = c
	}
	c.ID = update.ID
	c.Title, c.Name = cmp.Or(t.text(update.Title), c.Title), cmp.Or(t.text(update.toolName()), c.Name)
	c.ToolKind, c.Status = cmp.Or(update.ToolKind, c.ToolKind), cmp.Or(update.Status, c.Status)
	if hasValue(update.RawInput) {
		c.RawInput = update.RawInput
		c.input, c.incomplete = t.fields(update.RawInput)
	}
	if hasValue(update.RawOutput) {
		c.RawOutput = update.RawOutput
	}
	// New content replaces the earlier content. An empty list is also new content.
	if text := string(bytes.TrimSpace(content)); text != "" && text != "null" {
		c.content = content
	}
	// Codex sends command output and the exit code in these extensions.
	if text, _ := update.meta("terminal_output_delta", "data").(string); text != "" {
		_, _ = c.printed.Write([]byte(text))
	}
	if code, ok := update.meta("terminal_exit", "exit_code").(float64); ok {
		c.exit = ptr.To(int(code))
	}
	if len(update.Locations) > 0 {
		c.Locations = update.Locations
	}
	if c.ToolKind == kindExecute && c.field(commandFields...) == "" && c.field("server") != "" && c.field("tool") != "" {
		c.ToolKind = kindOther // codex reports calls of MCP tools as commands
	}
	return c
}

// hasValue reports whether a value is not empty. Many agents announce a call with empty input and
// send the input later.
func hasValue(value json.RawMessage) bool {
	text := string(bytes.TrimSpace(value))
	return text != "" && text != "null" && text != "{}" && text != "[]"
}

// tool returns the action event as soon as the call's input is known. It returns the result event
// when the call is over.
func (t *translator) tool(update *toolCall, content json.RawMessage) (events []session.Event) {
	if update.ID == "" {
		return nil
	}
	c := t.merge(update, content)
	over := c.Status == acp.Completed || c.Status == acp.Failed
	if !c.started && (c.hasInput() || over) {
		events = append(events, c.action(""))
	}
	if over && !c.observed {
		c.observed = true
		events = append(events, c.observation())
	}
	if c.observed { // input and output are recorded; free their memory
		c.RawInput, c.RawOutput, c.content, c.progress, c.exit = nil, nil, nil, nil, nil
		c.input, c.printed = map[string]any{}, tail{texts: t.texts}
	}
	return events
}

// asked returns the action of a call that needs permission. It returns no action if the action is
// already recorded.
func (t *translator) asked(c *call, confirmation string) []session.Event {
	events := t.flush()
	if !c.started {
		events = append(events, c.action(confirmation))
	}
	return events
}

// digest returns a hash of all that describes the call: tool, title, input, content and locations.
func (c *call) digest() string {
	sum := sha256.New()
	for _, part := range []string{c.ToolKind, c.Name, c.Title, plain(c.RawInput), plain(c.content),
		encoded(c.Locations)} {
		part = c.mask(part)
		_, _ = fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func plain(value json.RawMessage) string {
	var read any
	if json.Unmarshal(value, &read) != nil {
		return ""
	}
	return encoded(read)
}

// result returns the call's output as text. For a command, it prefers the plain output, because
// agents may format the content for people.
func (c *call) result() string {
	output, plain := outputOf(c.RawOutput)
	switch text := textOf(c.content); {
	case c.printed.buffer.Len() > 0:
		return c.printed.String()
	case plain && c.ToolKind == kindExecute, text == "":
		return output
	default:
		return text
	}
}

// observation returns the event with the call's result. record() sets the event's cause.
func (c *call) observation() session.Event {
	content := c.text(c.result())
	success := c.Status == acp.Completed
	e := session.Event{Source: session.FromAgent, Message: c.line(c.Title), Content: &content,
		ToolCall: &session.ToolCall{ID: c.ID, Function: c.Name}}
	switch c.ToolKind {
	case kindExecute:
		code, interrupted := c.exitCode()
		success = success && code == 0
		e.Observation = session.ActionRun
		e.Extras = map[string]any{argCommand: c.command(), "metadata": map[string]any{"exit_code": code}}
		if interrupted {
			e.Extras[extraInterrupted] = true
		}
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

// These are the exit codes of commands that have not ended by themselves. To OpenHands clients, -1
// means that the command is still running. Shells return 130 after an interrupt.
const (
	exitRunning     = -1
	exitInterrupted = 130
)

// exitCode returns a command's exit code. If the agent sent no exit code, the result is 1 after a
// failure and otherwise 0.
func (c *call) exitCode() (code int, interrupted bool) {
	var output struct {
		Snake    *int `json:"exit_code"`
		Camel    *int `json:"exitCode"`
		Metadata struct {
			Exit *int `json:"exit"`
		} `json:"metadata"`
		Interrupted bool `json:"interrupted"`
		Running     bool `json:"running"`
	}
	_ = json.Unmarshal(c.RawOutput, &output)
	code = 0
	switch sent := cmp.Or(c.exit, output.Snake, output.Camel, output.Metadata.Exit); {
	case sent != nil:
		code = *sent
	case output.Interrupted:
		code = exitInterrupted
	case output.Running:
		code = exitRunning
	case c.Status == acp.Failed:
		code = 1
	}
	return code, output.Interrupted
}

// outputOf returns a tool's output as text. plain is false if the text is JSON of an unknown form.
func outputOf(raw json.RawMessage) (text string, plain bool) {
	if json.Unmarshal(raw, &text) == nil && string(raw) != "null" {
		return text, true
	}
	var fields struct {
		Output *string `json:"output"`
		// Result is the field in which codex sends the result of an MCP tool.
		Result struct {
			Content json.RawMessage `json:"content"`
		} `json:"result"`
	}
	_ = json.Unmarshal(raw, &fields) // other JSON types have no fields
	if fields.Output != nil {
		return *fields.Output, true
	}
	if text = textOf(fields.Result.Content); text != "" {
		return text, true
	}
	if !hasValue(raw) {
		return "", false
	}
	return string(raw), false
}
