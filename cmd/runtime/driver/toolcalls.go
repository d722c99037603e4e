package driver

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// toolCall is an update about a tool call. It may be complete or partial.
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
	// Name of the tool, if the agent sends it.
	Name string `json:"name"`
	// Meta holds extensions of the protocol.
	Meta map[string]any `json:"_meta"`
}

// meta returns the value at a path in Meta, or nil.
func (t *toolCall) meta(path ...string) any {
	var value any = t.Meta
	for _, key := range path {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}
	return value
}

// toolName returns the name of the tool, from the protocol or from the extensions of Parley's agent
// and qwen.
func (t *toolCall) toolName() string {
	parley, _ := t.meta(acp.MetaTool).(string)
	qwen, _ := t.meta("toolName").(string)
	return cmp.Or(parley, qwen, t.Name)
}

// kindExecute is the kind of tools that run commands, and commandFields are the input fields that
// may hold the command. kindOther is the kind of all unusual tools.
const (
	kindExecute = "execute"
	kindOther   = "other"
)

var commandFields = []string{argCommand, "cmd"}

// call is the accumulated state of a tool call.
type call struct {
	toolCall
	texts
	// input holds the fields of the tool's input. Clients expect an object, even if it is empty.
	input   map[string]any
	content json.RawMessage
	printed tail
	// progress is the latest content of a running call.
	progress json.RawMessage
	exit     *int
	started  bool // its action is recorded
	// shown is the recorded action as the user sees it. incomplete is set if part of the input is
	// left out of the recorded action.
	shown      string
	incomplete bool
	observed   bool // its result is recorded
	old        bool // it belongs to an earlier turn
}

// merge finds or creates the call of an update, and merges the update into the call.
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
	// New content replaces earlier content, even if it is an empty list.
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

// hasValue reports whether a value is set and not empty. Many agents announce a call before they
// send its input.
func hasValue(value json.RawMessage) bool {
	text := string(bytes.TrimSpace(value))
	return text != "" && text != "null" && text != "{}" && text != "[]"
}

// tool records the action once its input is known, and its result once the call is over.
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
	if c.observed { // both are recorded and may be large
		c.RawInput, c.RawOutput, c.content, c.progress, c.exit = nil, nil, nil, nil, nil
		c.input, c.printed = map[string]any{}, tail{texts: t.texts}
	}
	return events
}

// asked returns the action of a call that needs permission, unless the action is recorded.
func (t *translator) asked(c *call, confirmation string) []session.Event {
	events := t.flush()
	if !c.started {
		events = append(events, c.action(confirmation))
	}
	return events
}

// digest identifies the tool and its input.
func (c *call) digest() string {
	sum := sha256.New()
	for _, part := range []string{c.ToolKind, c.Name, c.Title, plain(c.RawInput), plain(c.content),
		encoded(c.Locations)} {
		part = c.mask(part)
		_, _ = fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// plain encodes a value in a canonical form.
func plain(value json.RawMessage) string {
	var read any
	if json.Unmarshal(value, &read) != nil {
		return ""
	}
	return encoded(read)
}

// field returns the first of these input fields that is a text or a list of words.
func (c *call) field(names ...string) string {
	for _, name := range names {
		switch value := c.input[name].(type) {
		case string:
			if value != "" {
				return value
			}
		case []any:
			if line := commandLine(value); line != "" {
				c.incomplete = c.incomplete || len(line) > maxInput
				return c.upTo(line, maxInput)
			}
		}
	}
	return ""
}

// commandLine returns a list of words as a line for a shell, or nothing if an element is not a
// string.
func commandLine(list []any) string {
	words := make([]string, len(list))
	for i, value := range list {
		word, isText := value.(string)
		switch {
		case !isText:
			return ""
		case !plainWord.MatchString(word):
			word = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		words[i] = word
	}
	return strings.Join(words, " ")
}

// plainWord matches words that need no quotes in a shell.
var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// hasInput reports whether the tool's input is known. Some agents report a call as running before
// they send its input.
func (c *call) hasInput() bool {
	return hasValue(c.RawInput) && (c.ToolKind != kindExecute || c.field(commandFields...) != "")
}

func (c *call) command() string {
	return cmp.Or(c.field(commandFields...), strings.Trim(c.Title, "`"))
}

// path returns the first path of the call. If there is no path, it returns the title.
func (c *call) path() string { return append(c.paths(), c.Title)[0] }

// paths returns the files that the call's input, locations and changes name.
func (c *call) paths() (paths []string) {
	add := func(value any) {
		if path, _ := value.(string); path != "" && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	for _, name := range []string{"path", "file_path", "filePath", "abs_path", "absolute_path"} {
		add(c.input[name])
		list, _ := c.input[name].([]any)
		for _, path := range list {
			add(path)
		}
	}
	for _, location := range c.Locations {
		add(c.text(location.Path))
	}
	for _, diff := range c.diffs() {
		add(c.text(diff.Path))
	}
	return paths
}

// risk is the agent's rating of the call: LOW, MEDIUM, HIGH or empty.
func (c *call) risk() string { return strings.ToUpper(c.field(argRisk)) }

func (c *call) name() string { return cmp.Or(c.Name, c.field("tool"), c.Title) }

// action returns the action event of the call.
func (c *call) action(confirmation string) session.Event {
	c.started, c.shown = true, c.display()
	e := c.describe()
	if confirmation != "" {
		e.Args[argConfirmation] = confirmation
	}
	return e
}

// display returns a digest of the action as a user sees it.
func (c *call) display() string {
	e := c.describe()
	return digestOf(e.Action + " " + encoded(e.Args))
}

// describe returns the action event for the kind of the tool, as clients expect it.
func (c *call) describe() session.Event {
	e := session.Event{Source: session.FromAgent, Message: c.line(c.Title), ToolCall: &session.ToolCall{ID: c.ID,
		Function: c.Name}}
	switch c.ToolKind {
	case kindExecute:
		e.Action, e.Args = session.ActionRun, map[string]any{argCommand: c.command(), argThought: ""}
		e.Message = "Running command: " + c.line(c.command())
		c.addInput(e.Args)
	case "read":
		e.Action, e.Args = session.ActionRead, map[string]any{"path": c.path(), argThought: ""}
		c.addInput(e.Args)
	case "edit", "delete", "move":
		e.Action, e.Args = session.ActionEdit, map[string]any{"path": c.path(), argThought: ""}
		if c.ToolKind != "edit" {
			e.Args[argOperation] = c.ToolKind
			if paths := c.paths(); len(paths) > 1 {
				e.Args["paths"] = paths
			}
		}
		if changes := c.changes(); len(changes) > 0 {
			e.Args[argChanges] = changes
		}
		c.addInput(e.Args)
	case "think":
		e.Action, e.Args = session.ActionThink, map[string]any{argThought: c.Title}
	default:
		e.Message = c.name()
		e.Action, e.Args = session.ActionTool, map[string]any{"name": c.name(), "arguments": c.input, argThought: ""}
	}
	if risk := c.risk(); risk != "" {
		e.Args[argRisk] = risk
	}
	return e
}

// addInput adds the whole input of a call to the arguments of its action, except fields whose value
// is already an argument. If an input field would replace or forge an argument that describes the
// action, the whole input becomes the argument "input" instead.
func (c *call) addInput(args map[string]any) {
	rest := maps.Clone(c.input)
	for name, value := range c.input {
		shownAs := name
		if name == "cmd" {
			shownAs = argCommand
		}
		known, isText := args[shownAs].(string)
		switch _, taken := args[name]; {
		case isText && (value == any(known) || known != "" && c.field(name) == known), name == argRisk && c.risk() != "":
			delete(rest, name)
		case taken, slices.Contains([]string{argOperation, argConfirmation, argChanges, argRisk}, name):
			args[argInput] = c.input
			return
		}
	}
	maps.Copy(args, rest)
}

// result returns the output of the call as text. For a command it is the plain output, without the
// agent's formatting for people.
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

// observation returns the event with the result of the call. record sets its cause.
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

// Exit codes of commands that did not end by themselves, as OpenHands clients and shells know them.
const (
	exitRunning     = -1
	exitInterrupted = 130
)

// exitCode returns the exit code of a command. Agents that do not send an exit code at least report
// failure.
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

// fileChange is a change of a file that the agent sends. Old is nil for a new file.
type fileChange struct {
	Type string  `json:"type"`
	Path string  `json:"path"`
	Old  *string `json:"oldText"`
	New  string  `json:"newText"`
}

// diffs returns the changes of files in the call's content.
func (c *call) diffs() []fileChange {
	var blocks []fileChange
	_ = json.Unmarshal(c.content, &blocks)
	return slices.DeleteFunc(blocks, func(block fileChange) bool { return block.Type != "diff" })
}

// changes returns the changes of files for an action, as far as the changes fit into an event.
func (c *call) changes() []any {
	var changes []any
	size := 0
	for _, diff := range c.diffs() {
		if size += len(diff.New) + len(ptr.Deref(diff.Old, "")); size > maxInput {
			c.incomplete = true
			break
		}
		change := map[string]any{"path": c.text(diff.Path), "new_text": c.upTo(diff.New, maxInput), "old_text": nil}
		if diff.Old != nil {
			change["old_text"] = c.upTo(*diff.Old, maxInput)
		}
		changes = append(changes, change)
	}
	return changes
}

// change returns the fields of a file edit, with the old and new text if the agent sends them.
func (c *call) change() map[string]any {
	extras := map[string]any{"path": c.path()}
	if diffs := c.diffs(); len(diffs) > 0 {
		first := diffs[0]
		extras["path"], extras["new_content"], extras["prev_exist"] = c.text(first.Path), c.text(first.New), first.Old != nil
		if first.Old != nil {
			extras["old_content"] = c.text(*first.Old)
		}
	}
	return extras
}

// outputOf returns the output of a tool as text. plain is set if the output is a text and not other
// JSON.
func outputOf(raw json.RawMessage) (text string, plain bool) {
	if json.Unmarshal(raw, &text) == nil && string(raw) != "null" {
		return text, true
	}
	var fields struct {
		Output *string `json:"output"`
		// Result is where codex puts the result of an MCP tool.
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
