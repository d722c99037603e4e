package driver

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Names that clients know: what an action runs, and why the agent acts, which they expect in every one.
const (
	argCommand = "command"
	argThought = "thought"
)

const (
	// maxText bounds each text of an event.
	maxText = 64 << 10
	// maxTitle bounds the line for people.
	maxTitle = 200
	// maxInput bounds what a tool is given that is kept by its fields.
	maxInput = 512 << 10
	// maxRaw bounds an update that is kept as it came.
	maxRaw = 64 << 10
)

// cut takes the middle out of a text that is too long: what matters is mostly at its ends.
func cut(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxText {
		return text
	}
	const half = maxText / 2
	head, tail := text[:half], text[len(text)-half:]
	return strings.ToValidUTF8(head, "") + fmt.Sprintf("\n[… %d bytes left out …]\n", len(text)-2*half) + strings.ToValidUTF8(tail, "")
}

func firstLine(text string) string {
	line, _, more := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > maxTitle {
		line, more = strings.ToValidUTF8(line[:maxTitle], ""), true
	}
	if more {
		line += " …"
	}
	return line
}

// boundedValue cuts the texts in a value.
func boundedValue(value any) any {
	switch v := value.(type) {
	case string:
		return cut(v)
	case []any:
		for i := range v {
			v[i] = boundedValue(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = boundedValue(v[name])
		}
	}
	return value
}

// bounded is a value that is kept as it came, or its beginning as text.
func bounded(raw json.RawMessage) any {
	if len(raw) > maxRaw {
		return strings.ToValidUTF8(string(raw[:maxRaw]), "") + " …"
	}
	return raw
}

func plural(n int, what string) string {
	text := strconv.Itoa(n) + " " + what
	if n != 1 && !strings.Contains(what, " ") {
		text += "s"
	}
	return text
}
