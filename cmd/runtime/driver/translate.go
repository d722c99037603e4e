package driver

import (
	"cmp"
	"encoding/json"
	"maps"
	"strings"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// update is what an agent tells while it works. Fields of all kinds of updates stand side by side.
type update struct {
	Kind    string          `json:"sessionUpdate"`
	Content json.RawMessage `json:"content"`
	Entries []planEntry     `json:"entries"`
	toolCall
}

type planEntry struct {
	Content string `json:"content"`
	Status  string `json:"status"`
}

// updateUser is what the user said, as an agent tells it again.
const updateUser = "user_message_chunk"

// unrecorded are known, and say nothing of what was done: what the agent offers, and what it
// counts, which is counted where the model is reached.
var unrecorded = map[string]bool{
	updateUser: true, "available_commands_update": true, "current_mode_update": true, "config_option_update": true,
	"session_info_update": true, acp.UsageUpdate: true,
}

// translator makes events of updates. It is the same for an update that is told again.
type translator struct {
	texts
	// kind and pieces of a message or thought that came in pieces, and is an event once it is
	// whole.
	kind   string
	pieces tail

	calls map[string]*call
}

func newTranslator(t texts) *translator {
	return &translator{texts: t, pieces: tail{texts: t}, calls: map[string]*call{}}
}

// begin a turn: calls that are over are forgotten, and their names free again. What came of one that
// is not may still be told, in this turn at the latest.
func (t *translator) begin() {
	maps.DeleteFunc(t.calls, func(_ string, c *call) bool {
		forget := c.observed || c.old
		c.old = true
		return forget
	})
}

// take an update; what it returns is to be recorded.
func (t *translator) take(raw json.RawMessage) (events []session.Event, seq int, err error) {
	var u update
	if err := json.Unmarshal(raw, &u); err != nil {
		return nil, 0, err
	}
	if partial, _ := u.Meta[acp.MetaPartial].(bool); partial {
		return nil, 0, nil
	}
	count, _ := u.Meta[acp.MetaSeq].(float64) // none where the agent does not count its updates
	seq = int(count)
	switch u.Kind {
	case acp.MessageChunk, acp.ThoughtChunk:
		if t.kind != u.Kind {
			events = t.flush()
		}
		t.kind = u.Kind
		_, _ = t.pieces.Write([]byte(textOf(u.Content)))
		if seq > 0 { // told as a whole
			events = append(events, t.flush()...)
		}
		return events, seq, nil
	case acp.NewToolCall, acp.ToolUpdate:
		return append(t.flush(), t.tool(&u.toolCall, u.Content)...), seq, nil
	case acp.Plan:
		return append(t.flush(), t.plan(u.Entries)), seq, nil
	}
	if unrecorded[u.Kind] {
		return nil, seq, nil
	}
	event := session.Event{Source: session.FromAgent, Observation: session.ObservedUpdate, Content: new(string),
		Extras: map[string]any{"update": t.raw(raw)}}
	return append(t.flush(), event), seq, nil
}

// flush is the event of a message that came in pieces, if there is one.
func (t *translator) flush() []session.Event {
	kind, text := t.kind, t.text(strings.TrimSpace(t.pieces.String()))
	t.kind = ""
	t.pieces = tail{texts: t.texts}
	switch {
	case text == "":
		return nil
	case kind == acp.ThoughtChunk:
		return []session.Event{{Source: session.FromAgent, Action: session.ActionThink, Message: t.line(text),
			Args: map[string]any{argThought: text}}}
	}
	return []session.Event{agentMessage(text, text)}
}

// agentMessage is what the agent said, with a line of it for people.
func agentMessage(text, line string) session.Event {
	event := session.UserMessage(text, nil)
	event.Source, event.Message = session.FromAgent, line
	return event
}

// taskSize is what an event needs for a task beside its title.
const taskSize = 64

var taskStates = map[string]string{"pending": "todo", "in_progress": "in_progress", "completed": "done"}

// plan of the agent, with as many of its tasks as an event holds.
func (t *translator) plan(entries []planEntry) session.Event {
	tasks := []any{}
	done, size, left := 0, 0, 0
	for _, entry := range entries {
		state := cmp.Or(taskStates[entry.Status], taskStates["pending"])
		if entry.Status == "completed" {
			done++
		}
		if size > maxInput {
			left += len(entry.Content)
			continue
		}
		title := t.text(entry.Content)
		size += len(title) + taskSize
		tasks = append(tasks, map[string]any{"title": title, "status": state, "notes": ""})
	}
	content := "The plan has " + plural(len(entries), "task") + ", " + plural(done, "of them") + " done."
	if len(tasks) < len(entries) {
		content += " Left out: " + plural(len(entries)-len(tasks), "task") + " of " + plural(left, "byte") + "."
	}
	return session.Event{
		Source: session.FromAgent, Observation: session.ObservedTasks, Message: content, Content: &content,
		Extras: map[string]any{argCommand: "plan", "task_list": tasks},
	}
}

// maxDepth bounds how deep content may lie in content: each level is read anew. Agents need three.
const maxDepth = 8

// textOf is the text of a block of content, or of a list of them.
func textOf(content json.RawMessage) string { return textWithin(content, maxDepth) }

func textWithin(content json.RawMessage, depth int) string {
	if depth == 0 {
		return leftOut(len(content))
	}
	var block struct {
		Type    string          `json:"type"`
		Text    string          `json:"text"`
		Content json.RawMessage `json:"content"`
		Path    string          `json:"path"`
		URI     string          `json:"uri"`
	}
	var list []json.RawMessage
	if json.Unmarshal(content, &list) == nil {
		var texts []string
		for _, item := range list {
			if text := textWithin(item, depth-1); text != "" {
				texts = append(texts, text)
			}
		}
		return strings.Join(texts, "\n")
	}
	if json.Unmarshal(content, &block) != nil {
		return ""
	}
	switch block.Type {
	case "text":
		return block.Text
	case "content":
		return textWithin(block.Content, depth-1)
	case "diff":
		return "Changed " + block.Path
	case "resource_link":
		return block.URI
	case "image", "audio":
		return "(" + block.Type + ")"
	}
	return ""
}
