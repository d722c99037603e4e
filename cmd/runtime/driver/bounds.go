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

// These are the names of an action's arguments. OpenHands clients expect a thought in every action.
const (
	argCommand      = "command"
	argThought      = "thought"
	argConfirmation = "confirmation_state"
	argRisk         = "security_risk"
	argOperation    = "operation"
	argChanges      = "changes"
	argInput        = "input"
)

// These limits are in bytes.
const (
	// maxText bounds each text in an event.
	maxText = 64 << 10
	// maxTitle bounds the one-line summary of an event. maxLogged bounds the error of a turn in the
	// runtime's log.
	maxTitle  = 200
	maxLogged = 1 << 10
	// maxInput bounds the input fields of a tool call, and the tasks of a plan.
	maxInput = 512 << 10
	// maxRaw bounds an update that is recorded unchanged.
	maxRaw = 64 << 10
	// maxID bounds the session IDs and tool call IDs that an agent chooses.
	maxID = 512
	// maxOutput is how much of a command's output stays in memory. The command's event contains at
	// most maxText of it.
	maxOutput = 256 << 10
)

func omitted(size int) string { return fmt.Sprintf("[… %d bytes left out …]", size) }

// texts prepares texts for an event. It masks secrets before it truncates a text, because a
// truncated secret would not be recognized.
type texts struct{ mask func(string) string }

// text returns a text with masked secrets. It removes the middle of a long text, because the
// beginning and the end usually matter most.
func (t texts) text(text string) string { return t.upTo(text, maxText) }

func (t texts) upTo(text string, most int) string {
	text = strings.ToValidUTF8(t.mask(text), "\uFFFD")
	if len(text) <= most {
		return text
	}
	half := most / 2
	head, tail := text[:half], text[len(text)-half:]
	return strings.ToValidUTF8(head, "") + "\n" + omitted(len(text)-2*half) + "\n" + strings.ToValidUTF8(tail, "")
}

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

// observed returns the event for a notice or an error of the session itself, not of the agent.
func (t texts) observed(kind, text string) session.Event {
	text = t.text(text)
	return session.Event{Source: session.FromEnvironment, Observation: kind, Message: t.line(text), Content: &text}
}

// shortened truncates a text that is already masked.
func shortened(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " …"
}

// id returns a masked ID, or the digest of a long ID.
func (t texts) id(name string) string {
	name = t.mask(name)
	if len(name) <= maxID {
		return name
	}
	digest := sha256.Sum256([]byte(name))
	return hex.EncodeToString(digest[:])
}

// value masks and truncates every string in a decoded JSON value.
func (t texts) value(value any, most int) any {
	switch v := value.(type) {
	case string:
		return t.upTo(v, most)
	case []any:
		for i := range v {
			v[i] = t.value(v[i], most)
		}
	case map[string]any:
		for name := range v {
			v[name] = t.value(v[name], most)
		}
	}
	return value
}

// raw returns an update unchanged, or as text if the update is too large. It decodes a large update
// before it masks and truncates the texts, because JSON can escape a secret in several ways.
func (t texts) raw(raw json.RawMessage) any {
	if len(raw) <= maxRaw {
		return raw
	}
	var value any
	_ = json.Unmarshal(raw, &value) // the translator has already parsed it
	return t.text(encoded(t.value(value, maxText)))
}

// fields returns the input fields of a tool call. Input that is not an object becomes the field
// "input". If the input is too large, each text in the input is truncated. If that is not enough,
// the whole input becomes one truncated text.
func (t texts) fields(raw json.RawMessage) (fields map[string]any, incomplete bool) {
	var value any
	_ = json.Unmarshal(raw, &value) // the translator has already parsed it
	incomplete = len(raw) > maxInput
	if incomplete {
		value = t.value(value, maxText)
	} else {
		value = t.value(value, maxInput)
	}
	fields, isObject := value.(map[string]any)
	if incomplete {
		if text := encoded(value); !isObject || len(text) > maxInput {
			return map[string]any{argInput: t.text(text)}, true
		}
	}
	if !isObject {
		fields = map[string]any{argInput: value}
	}
	return fields, incomplete
}

func encoded(value any) string {
	text, _ := acp.Encode(value) // the value was decoded from JSON
	return string(text)
}

func (t texts) truncated(e session.Event) session.Event {
	e.Message = t.text(e.Message)
	if e.Content != nil {
		content := t.text(*e.Content)
		e.Content = &content
	}
	e.Args, e.Extras = t.truncatedMap(e.Args), t.truncatedMap(e.Extras)
	return e
}

func (t texts) truncatedMap(values map[string]any) map[string]any {
	if values == nil {
		return nil
	}
	kept := make(map[string]any, len(values))
	for name, value := range values {
		if len(name) > maxID {
			name = omitted(len(name))
		}
		kept[name] = value
		if text, isText := value.(string); isText {
			kept[name] = t.text(text)
		} else if encoded, err := json.Marshal(value); err != nil || len(encoded) > maxText {
			kept[name] = omitted(len(encoded))
		}
	}
	return kept
}

// tail keeps the last part of the text that is written to it.
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
		// Mask the text before its beginning is cut off, because the mask recognizes only complete
		// secrets. The buffer has more bytes before and after the cut than the longest secret has,
		// so a secret at the cut is still complete. Do not mask the last line yet, because it may
		// end within a secret. But if the cut is in the last line, mask this line too.
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

// lastLine returns the last non-empty line. It masks before it splits, because a secret may have
// several lines.
func (t *tail) lastLine() string {
	t.mu.Lock()
	said := t.buffer.String()
	t.mu.Unlock()
	said = strings.TrimSpace(t.mask(said))
	return t.line(said[strings.LastIndexByte(said, '\n')+1:])
}

// end returns at most the last n bytes of the text.
func (t *tail) end(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.buffer.Bytes()
	return string(text[max(0, len(text)-n):])
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dropped > 0 {
		return omitted(t.dropped) + "\n" + t.buffer.String()
	}
	return t.buffer.String()
}

func plural(n int, noun string) string {
	text := strconv.Itoa(n) + " " + noun
	if n != 1 && !strings.Contains(noun, " ") {
		text += "s"
	}
	return text
}
