package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/parley-dev/parley/api/session"
)

const diffContext = 3

// callText returns the whole content of a tool call, exactly as it will be executed: the command,
// the diff or the arguments. Its first line names the call.
func callText(e *session.Event) string {
	args := maps.Clone(e.Args)
	take := func(name string) string {
		text, isText := args[name].(string)
		if isText || args[name] == nil {
			delete(args, name)
		}
		return text
	}
	for _, name := range []string{"thought", "security_risk", "confirmation_state"} {
		delete(args, name)
	}
	var lines []string
	switch e.Action {
	case session.ActionRun:
		lines = append(lines, "$ "+take("command"))
	case session.ActionEdit:
		lines = editText(args, take)
	case session.ActionTool:
		lines = append(lines, "Tool "+take("name"), argumentText(args["arguments"]))
		delete(args, "arguments")
	default:
		lines = append(lines, e.Action+" "+take("path"))
	}
	if len(args) > 0 {
		lines = append(lines, argumentText(args))
	}
	return visible(strings.Join(lines, "\n"))
}

// editText describes an edit, and removes the described arguments from args. take()
// returns an argument and removes it from args.
func editText(args map[string]any, take func(string) string) []string {
	path := take("path")
	word, command := map[any]string{"delete": "Delete", "move": "Move"}[args["operation"]], args["command"]
	if word != "" {
		take("operation")
		command = nil // a command has no meaning in a deletion or a move
	}
	switch command {
	case "create", "str_replace", "insert":
		delete(args, "changes")
		take("command")
	}
	switch command {
	case "create":
		return append([]string{"Create " + path}, marked("+ ", take("file_text"))...)
	case "str_replace":
		return append([]string{"Edit " + path}, changeText(take("old_str"), take("new_str"))...)
	case "insert":
		line := fmt.Sprint(args["insert_line"])
		delete(args, "insert_line")
		return append([]string{"Edit " + path + ", after line " + line}, marked("+ ", take("new_str"))...)
	}
	lines := []string{cmp.Or(word, "Edit") + " " + path}
	changes, isList := args["changes"].([]any)
	if !isList {
		return lines
	}
	delete(args, "changes")
	for _, entry := range changes {
		change, _ := entry.(map[string]any)
		file, _ := change["path"].(string)
		before, existed := change["old_text"].(string)
		now, _ := change["new_text"].(string)
		if !existed {
			lines = append(append(lines, "New file "+file), marked("+ ", now)...)
			continue
		}
		lines = append(append(lines, "Changes to "+file), changeText(before, now)...)
	}
	return lines
}

func argumentText(value any) string {
	if value == nil {
		value = map[string]any{}
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Sprint(value)
	}
	return strings.TrimSuffix(text.String(), "\n")
}

func linesOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

func marked(mark, text string) []string { return prefixed(mark, linesOf(text)) }

func prefixed(mark string, lines []string) []string {
	marked := slices.Clone(lines)
	for i := range marked {
		marked[i] = mark + marked[i]
	}
	return marked
}

// changeText shows the lines from the first to the last difference, and diffContext lines before
// and after them.
func changeText(before, now string) []string {
	a, b := linesOf(before), linesOf(now)
	start := 0
	for start < min(len(a), len(b)) && a[start] == b[start] {
		start++
	}
	end := 0
	for end < min(len(a), len(b))-start && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	text := slices.Concat(prefixed("  ", a[max(0, start-diffContext):start]), prefixed("- ", a[start:len(a)-end]),
		prefixed("+ ", b[start:len(b)-end]), prefixed("  ", a[len(a)-end:min(len(a), len(a)-end+diffContext)]))
	if before != "" && now != "" && strings.HasSuffix(before, "\n") != strings.HasSuffix(now, "\n") {
		text = append(text, map[bool]string{true: "(line break at the end added)",
			false: "(line break at the end removed)"}[strings.HasSuffix(now, "\n")])
	}
	return text
}

// visible makes a text printable and also shows invisible characters, which could disguise a
// command.
func visible(text string) string {
	return printable(strings.Map(func(c rune) rune {
		switch {
		case c == '\r':
			return '␍'
		case c == '\u2800', unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point,
			unicode.Variation_Selector):
			return unicode.ReplacementChar
		}
		return c
	}, text))
}
