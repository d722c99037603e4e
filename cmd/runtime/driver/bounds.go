package driver

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// Names that clients know: what an action runs, and why the agent acts, which they expect in every
// one.
const (
	argCommand = "command"
	argThought = "thought"
)

const (
	// maxText bounds each text of an event.
	maxText = 64 << 10
	// maxTitle bounds the line for people.
	maxTitle = 200
	// maxLogged bounds what the log repeats.
	maxLogged = 1 << 10
	// maxInput bounds what a tool is given that is kept by its fields, and the tasks of a plan.
	maxInput = 512 << 10
	// maxRaw bounds an update that is kept as it came.
	maxRaw = 64 << 10
	// maxID bounds the names that an agent gives to its sessions and calls.
	maxID = 512
	// maxOutput is how much is kept of what a command printed; an event holds less.
	maxOutput = 256 << 10
)

// leftOut stands for what is too large.
func leftOut(size int) string { return fmt.Sprintf("[… %d bytes left out …]", size) }

// texts makes what others say fit for an event. It takes secrets out before it cuts: a part of one
// is not known as such.
type texts struct{ mask func(string) string }

// text without its middle where it is too long: what matters is mostly at its ends.
func (t texts) text(text string) string {
	text = strings.ToValidUTF8(t.mask(text), "\uFFFD")
	if len(text) <= maxText {
		return text
	}
	const half = maxText / 2
	head, tail := text[:half], text[len(text)-half:]
	return strings.ToValidUTF8(head, "") + "\n" + leftOut(len(text)-2*half) + "\n" + strings.ToValidUTF8(tail, "")
}

// line for people: the first of a text.
func (t texts) line(text string) string {
	line, _, more := strings.Cut(strings.TrimSpace(t.mask(text)), "\n")
	if len(line) > maxTitle {
		line, more = strings.ToValidUTF8(line[:maxTitle], ""), true
	}
	if more {
		line += " …"
	}
	return line
}

// observed is an event of the session itself: a notice, or an error.
func (t texts) observed(kind, text string) session.Event {
	text = t.text(text)
	return session.Event{Source: session.FromEnvironment, Observation: kind, Message: t.line(text), Content: &text}
}

// shortened is a text of which the secrets were taken out, without its end where it is too long.
func shortened(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " …"
}

// id is a name that something is known by, or a digest where it is too long.
func (t texts) id(name string) string {
	name = t.mask(name)
	if len(name) <= maxID {
		return name
	}
	digest := sha256.Sum256([]byte(name))
	return hex.EncodeToString(digest[:])
}

// value with each of its texts cut.
func (t texts) value(value any) any {
	switch v := value.(type) {
	case string:
		return t.text(v)
	case []any:
		for i := range v {
			v[i] = t.value(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = t.value(v[name])
		}
	}
	return value
}

// raw is an update as it came, or as text where it is too large. It is read before it is cut: there
// is more than one way to write a secret as JSON.
func (t texts) raw(raw json.RawMessage) any {
	if len(raw) <= maxRaw {
		return raw
	}
	var value any
	_ = json.Unmarshal(raw, &value) // it was read before
	return t.text(encoded(t.value(value)))
}

// fields of what a tool is given. What is no object has none. What is too large with each of its
// texts cut is kept as one.
func (t texts) fields(raw json.RawMessage) map[string]any {
	var value any
	_ = json.Unmarshal(raw, &value) // it was read before
	value = t.value(value)
	fields, isObject := value.(map[string]any)
	if len(raw) > maxInput {
		if text := encoded(value); !isObject || len(text) > maxInput {
			return map[string]any{"input": t.text(text)}
		}
	}
	if !isObject {
		return map[string]any{}
	}
	return fields
}

func encoded(value any) string {
	text, _ := acp.Encode(value) // it came as JSON
	return string(text)
}

// lean is an event without what makes it too large for the journal.
func (t texts) lean(e session.Event) session.Event {
	e.Message = t.text(e.Message)
	if e.Content != nil {
		content := t.text(*e.Content)
		e.Content = &content
	}
	e.Args, e.Extras = t.leanMap(e.Args), t.leanMap(e.Extras)
	return e
}

func (t texts) leanMap(values map[string]any) map[string]any {
	if values == nil {
		return nil
	}
	kept := make(map[string]any, len(values))
	for name, value := range values {
		if len(name) > maxID {
			name = leftOut(len(name))
		}
		kept[name] = value
		if text, isText := value.(string); isText {
			kept[name] = t.text(text)
		} else if encoded, err := json.Marshal(value); err != nil || len(encoded) > maxText {
			kept[name] = leftOut(len(encoded))
		}
	}
	return kept
}

// tail keeps the end of what is written.
type tail struct {
	texts
	mu      sync.Mutex
	buffer  bytes.Buffer
	dropped int
}

func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buffer.Write(text)
	if t.buffer.Len() > 2*maxOutput {
		// A secret is much shorter than what is kept, so that one which lies across the cut is all
		// there. What may still become one, at the end, is left for the next time.
		text := t.buffer.String()
		whole := strings.LastIndexByte(text, '\n') + 1
		if len(text)-whole > maxOutput {
			whole = len(text)
		}
		kept := t.mask(text[:whole]) + text[whole:]
		extra := max(0, len(kept)-maxOutput)
		t.dropped += extra
		t.buffer.Reset()
		t.buffer.WriteString(kept[extra:])
	}
	return len(text), nil
}

// lastLine that says something. All is masked before it is cut into lines: a secret may have
// several.
func (t *tail) lastLine() string {
	t.mu.Lock()
	said := t.buffer.String()
	t.mu.Unlock()
	said = strings.TrimSpace(t.mask(said))
	return t.line(said[strings.LastIndexByte(said, '\n')+1:])
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped > 0 {
		return leftOut(t.dropped) + "\n" + t.buffer.String()
	}
	return t.buffer.String()
}

func plural(n int, what string) string {
	text := strconv.Itoa(n) + " " + what
	if n != 1 && !strings.Contains(what, " ") {
		text += "s"
	}
	return text
}
