package driver

import (
	"encoding/json"
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

// The kinds of updates.
const (
	updateMessage    = "agent_message_chunk"
	updateThought    = "agent_thought_chunk"
	updateUser       = "user_message_chunk"
	updateTool       = "tool_call"
	updateToolChange = "tool_call_update"
	updatePlan       = "plan"
)

// unrecorded are known, and say nothing of what was done: what the agent offers, and what it counts, which is counted where the model
// is reached.
var unrecorded = map[string]bool{
	updateUser: true, "available_commands_update": true, "current_mode_update": true, "config_option_update": true,
	"session_info_update": true, "usage_update": true,
}

// translator makes events of updates. It is the same for an update that is told again.
type translator struct {
	// kind and text of a message or thought that came in pieces, and is an event once it is whole.
	kind string
	text strings.Builder

	calls map[string]*call
}

func newTranslator() *translator { return &translator{calls: map[string]*call{}} }

// seq is the agent's count of an update, 0 where it does not count.
func (u *update) seq() int {
	n, _ := u.Meta[acp.MetaSeq].(float64)
	return int(n)
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
	seq = u.seq()
	switch u.Kind {
	case updateMessage, updateThought:
		if t.kind != u.Kind {
			events = t.flush()
		}
		t.kind = u.Kind
		t.text.WriteString(textOf(u.Content))
		if seq > 0 { // told as a whole
			events = append(events, t.flush()...)
		}
		return events, seq, nil
	case updateTool, updateToolChange:
		return append(t.flush(), t.tool(&u.toolCall, u.Content)...), seq, nil
	case updatePlan:
		return append(t.flush(), planEvent(u.Entries)), seq, nil
	}
	if unrecorded[u.Kind] {
		return nil, seq, nil
	}
	event := session.Event{Source: session.FromAgent, Observation: session.ObservedUpdate, Content: new(string), Extras: map[string]any{"update": bounded(raw)}}
	return append(t.flush(), event), seq, nil
}

// flush is the event of a message that came in pieces, if there is one.
func (t *translator) flush() []session.Event {
	kind, text := t.kind, strings.TrimSpace(t.text.String())
	t.kind = ""
	t.text.Reset()
	switch {
	case text == "":
		return nil
	case kind == updateThought:
		return []session.Event{{Source: session.FromAgent, Action: session.ActionThink, Message: firstLine(text), Args: map[string]any{argThought: cut(text)}}}
	}
	return []session.Event{{
		Source: session.FromAgent, Action: session.ActionMessage, Message: cut(text),
		Args: map[string]any{"content": cut(text), "image_urls": []string{}, "wait_for_response": false},
	}}
}

var taskStates = map[string]string{"pending": "todo", "in_progress": "in_progress", "completed": "done"}

func planEvent(entries []planEntry) session.Event {
	tasks := []any{}
	done := 0
	for _, entry := range entries {
		state := taskStates[entry.Status]
		if state == "" {
			state = taskStates["pending"]
		}
		if entry.Status == "completed" {
			done++
		}
		tasks = append(tasks, map[string]any{"title": cut(entry.Content), "status": state, "notes": ""})
	}
	content := "The plan has " + plural(len(entries), "task") + ", " + plural(done, "of them") + " done."
	return session.Event{
		Source: session.FromAgent, Observation: session.ObservedTasks, Message: content, Content: &content,
		Extras: map[string]any{argCommand: "plan", "task_list": tasks},
	}
}

// textOf is the text of a block of content, or of a list of them.
func textOf(content json.RawMessage) string {
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
			if text := textOf(item); text != "" {
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
		return textOf(block.Content)
	case "diff":
		return "Changed " + block.Path
	case "resource_link":
		return block.URI
	case "image", "audio":
		return "(" + block.Type + ")"
	}
	return ""
}
