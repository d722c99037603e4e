package driver

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
)

// commandFields are the input fields in which agents send a command.
var commandFields = []string{argCommand, "cmd"}

// field returns the first value in the named input fields that is a text or a list of texts. A list
// becomes a command line.
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

// commandLine joins a list of words for a shell. It returns an empty string if an element is not a
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

// path returns the first path of the call, or the title if the call has no path.
func (c *call) path() string { return append(c.paths(), c.Title)[0] }

// paths returns the files named in the call's input, locations and diffs.
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

// risk returns the agent's rating of the call's risk: LOW, MEDIUM, HIGH or an empty string.
func (c *call) risk() string { return strings.ToUpper(c.field(argRisk)) }

func (c *call) name() string { return cmp.Or(c.Name, c.field("tool"), c.Title) }

// action returns the call's action event and marks the call as started.
func (c *call) action(confirmation string) session.Event {
	c.started, c.shown = true, c.display()
	e := c.describe()
	if confirmation != "" {
		e.Args[argConfirmation] = confirmation
	}
	return e
}

// display returns a digest of the action as the user sees it.
func (c *call) display() string {
	e := c.describe()
	return digestOf(e.Action + " " + encoded(e.Args))
}

// describe returns the action event that clients expect for this kind of tool.
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

// addInput adds the call's input to the arguments of the action. It leaves out values that the
// arguments already contain. An input field must not replace or forge an argument that describes
// the action. If the names collide, the whole input becomes the argument "input".
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

// fileChange is a change of a file, in the form in which agents send it. Old is nil for a new file.
type fileChange struct {
	Type string  `json:"type"`
	Path string  `json:"path"`
	Old  *string `json:"oldText"`
	New  string  `json:"newText"`
}

func (c *call) diffs() []fileChange {
	var blocks []fileChange
	_ = json.Unmarshal(c.content, &blocks)
	return slices.DeleteFunc(blocks, func(block fileChange) bool { return block.Type != "diff" })
}

// changes returns as many file changes as fit into an event.
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

// change returns the event fields of a file edit.
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
