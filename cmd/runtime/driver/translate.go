package driver

import (
	"cmp"
	"encoding/json"
	"maps"
	"strings"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

// update is a session/update notification. It has the fields of all kinds of updates.
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

// unrecorded lists the known kinds of updates that are not recorded as events. It includes usage
// updates, because the model proxy measures the usage.
var unrecorded = map[string]bool{
	acp.UserChunk: true, "available_commands_update": true, "current_mode_update": true, "config_option_update": true,
	acp.SessionInfo: true, acp.UsageUpdate: true,
}

// translator turns updates into events. For a replayed update, it returns the same events again.
type translator struct {
	texts
	// kind and streamed hold a message or thought that arrives in chunks. The whole text becomes
	// one event.
	kind     string
	streamed tail
	// partial is an unfinished message or thought, for previews only. The agent sends the whole
	// text again when it is complete. partialKind is acp.MessageChunk or acp.ThoughtChunk.
	partialKind string
	partial     tail

	calls map[string]*call
	// printing contains the running commands that printed most recently.
	printing []*call
}

func newTranslator(t texts) *translator {
	return &translator{texts: t, streamed: tail{texts: t}, partial: tail{texts: t}, calls: map[string]*call{}}
}

// begin starts a turn. It forgets finished calls, so the agent may reuse their IDs. An unfinished
// call may still receive its result in this turn.
func (t *translator) begin() {
	t.partialKind, t.partial, t.printing = "", tail{texts: t.texts}, nil
	maps.DeleteFunc(t.calls, func(_ string, c *call) bool {
		forget := c.observed || c.old
		c.old = true
		return forget
	})
}

func (t *translator) take(raw json.RawMessage) (events []session.Event, seq int, err error) {
	var u update
	if err := json.Unmarshal(raw, &u); err != nil {
		return nil, 0, err
	}
	if retry, ok := u.Meta[acp.MetaRetry]; ok && u.Kind == acp.SessionInfo {
		return []session.Event{t.retryState(retry)}, 0, nil
	}
	if partial, _ := u.Meta[acp.MetaPartial].(bool); partial {
		t.takePartial(&u)
		return nil, 0, nil
	}
	count, _ := u.Meta[acp.MetaSeq].(float64) // zero if the agent does not number its updates
	seq = int(count)
	if notice, _ := u.Meta[acp.MetaNotice].(bool); notice {
		event := t.observed(session.ObservedNotice, textOf(u.Content))
		event.Source = session.FromAgent // only Parley's own notices come from the environment
		return append(t.flush(), event), seq, nil
	}
	switch u.Kind {
	case acp.UserChunk: // other user chunks are the user's messages in a replay
		if event, ok := deliveredEvent(u.Meta); ok {
			return append(t.flush(), event), seq, nil
		}
	case acp.MessageChunk, acp.ThoughtChunk:
		if t.kind != u.Kind {
			events = t.flush()
		}
		t.kind = u.Kind
		_, _ = t.streamed.Write([]byte(textOf(u.Content)))
		if seq > 0 { // a numbered update is complete
			events = append(events, t.flush()...)
		}
		return events, seq, nil
	case acp.NewToolCall, acp.ToolUpdate:
		events = append(t.flush(), t.tool(&u.toolCall, u.Content)...)
		if u.Status != acp.InProgress {
			u.Content = nil // the content may be a description of the command, not its output
		}
		if c := t.calls[u.ID]; c != nil && u.Kind == acp.ToolUpdate {
			t.progressed(c, u.Content)
		}
		return events, seq, nil
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

// flush ends the streamed message or thought and returns its event.
func (t *translator) flush() []session.Event {
	kind, text := t.kind, t.text(strings.TrimSpace(t.streamed.String()))
	t.kind, t.partialKind = "", ""
	t.streamed, t.partial = tail{texts: t.texts}, tail{texts: t.texts}
	switch {
	case text == "":
		return nil
	case kind == acp.ThoughtChunk:
		return []session.Event{{Source: session.FromAgent, Action: session.ActionThink, Message: t.line(text),
			Args: map[string]any{argThought: text}}}
	}
	return []session.Event{agentMessage(text, text)}
}

func agentMessage(text, line string) session.Event {
	event := session.UserMessage(text, nil)
	event.Source, event.Message = session.FromAgent, line
	return event
}

// taskSize is the estimated size of a task in an event, in bytes, without the task's title.
const taskSize = 64

var taskStates = map[string]string{"pending": "todo", "in_progress": "in_progress", "completed": "done"}

// plan returns the event of the agent's plan. It leaves out all tasks after maxInput bytes.
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

// maxDepth bounds the depth of nested content, because each level is parsed again. Agents need
// three levels.
const maxDepth = 8

// textOf returns the text of a content block or of a list of content blocks.
func textOf(content json.RawMessage) string { return textWithin(content, maxDepth) }

func textWithin(content json.RawMessage, depth int) string {
	if depth == 0 {
		return omitted(len(content))
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
