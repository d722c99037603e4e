package loop

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

// Event is an action of a recording. The observations of a recording are not replayed, because the
// actions produce new observations.
type Event struct {
	Source string    `json:"source"`
	Action string    `json:"action"`
	Args   eventArgs `json:"args"`
}

type eventArgs struct {
	editorCall
	Content      string          `json:"content"`
	Thought      string          `json:"thought"`
	IsInput      any             `json:"is_input"`
	Name         string          `json:"name"`
	Arguments    json.RawMessage `json:"arguments"`
	TaskList     json.RawMessage `json:"task_list"`
	FinalThought string          `json:"final_thought"`
	Message      string          `json:"message"`
}

// editorCall is the input of an editor call. Replayed calls of other tools use some of its fields.
type editorCall struct {
	Command   string          `json:"command"`
	FileText  *string         `json:"file_text,omitempty"`
	Insert    *int            `json:"insert_line,omitempty"`
	NewStr    *string         `json:"new_str,omitempty"`
	OldStr    *string         `json:"old_str,omitempty"`
	Path      string          `json:"path"`
	Risk      json.RawMessage `json:"security_risk,omitempty"`
	ViewRange []int           `json:"view_range,omitempty"`
}

// ReadRecording parses a trajectory: a list of events, or an object with such a list.
func ReadRecording(content []byte) ([]Event, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(content, &list); err != nil {
		var wrapped struct {
			Trajectory []json.RawMessage `json:"trajectory"`
		}
		if json.Unmarshal(content, &wrapped) != nil || wrapped.Trajectory == nil {
			return nil, errors.New("the recording is neither a list of events nor an object with a trajectory")
		}
		list = wrapped.Trajectory
	}
	var events []Event
	for i, raw := range list {
		var kind struct {
			Action string `json:"action"`
		}
		if err := json.Unmarshal(raw, &kind); err != nil {
			return nil, fmt.Errorf("event %d of the recording is not a JSON object", i)
		}
		if !replayable[kind.Action] {
			continue
		}
		var event Event
		if err := json.Unmarshal(raw, &event); err != nil {
			return nil, fmt.Errorf("event %d of the recording is invalid: %w", i, err)
		}
		events = append(events, event)
	}
	return events, nil
}

// replayable holds the actions that are replayed. All other actions concern the service that made
// the recording.
var replayable = map[string]bool{
	"message": true, "run": true, "read": true, "write": true, "edit": true, "call_tool_mcp": true, "think": true,
	"task_tracking": true, "finish": true,
	"run_ipython": true, "browse": true, "browse_interactive": true,
}

// replay executes the next event of the recording as if the model had just requested it.
func (s *Session) replay(ctx context.Context) error {
	event, done := s.options.Recording[s.state.replayed], s.state.replayed+1
	if event.Action == "message" && event.Source == "user" {
		message := s.message([]acp.Content{{Type: "text", Text: event.Args.Content}})
		return s.recordPrompt(turnlog.Record{Message: &message, Replayed: done}, event.Args.Content)
	}
	answer := llm.Answer{Stop: llm.StopEnd, Message: llm.Message{Role: llm.Assistant}}
	if event.Action == "think" {
		answer.Message.Parts = []llm.Part{{Text: event.Args.Thought}}
		return s.record(turnlog.Record{Kind: turnlog.KindAnswer, Answer: &answer, Replayed: done},
			acp.Update{Kind: acp.ThoughtChunk, Content: acp.Text(event.Args.Thought)})
	}
	if text := event.text(); text != "" {
		answer.Message.Parts = append(answer.Message.Parts, llm.Part{Text: text})
	}
	if name, input := event.call(); name != "" {
		answer.Stop = llm.StopTools
		encoded, err := json.Marshal(input)
		if err != nil {
			return err
		}
		answer.Message.Parts = append(answer.Message.Parts, llm.Part{Call: &llm.Call{ID: fmt.Sprintf("replay_%d", done),
			Name: name, Input: string(encoded)}})
	}
	return s.answer(ctx, answer, done)
}

func (e Event) text() string {
	a := e.Args
	switch e.Action {
	case "message":
		return a.Content
	case "finish":
		return cmp.Or(a.FinalThought, a.Message, a.Thought, "Finished.")
	case "run_ipython", "browse", "browse_interactive":
		return "[The recording continues with " + e.Action + ", which this agent cannot replay.]"
	}
	return a.Thought
}

// call returns the tool and the input of the call that replays the event.
func (e Event) call() (tool string, input any) {
	a := e.Args
	if len(a.ViewRange) != 2 {
		a.ViewRange = nil
	}
	others := map[string]any{"command": a.Command}
	if a.Risk = bytes.TrimPrefix(a.Risk, []byte("null")); len(a.Risk) > 0 {
		others["security_risk"] = a.Risk
	}
	switch e.Action {
	case "run":
		if a.IsInput == true || a.IsInput == "true" {
			others["is_input"] = true
		}
		return tools.BashName, others
	case "read":
		return tools.EditorName, editorCall{Command: "view", Path: a.Path, Risk: a.Risk, ViewRange: a.ViewRange}
	case "write":
		return tools.EditorName, editorCall{Command: "create", FileText: &a.Content, Path: a.Path, Risk: a.Risk}
	case "edit":
		if a.Command == "" && a.Content != "" { // an edit without an editor command replaces the whole file
			a.Command, a.FileText = "create", &a.Content
		}
		return tools.EditorName, a.editorCall
	case "call_tool_mcp":
		delete(others, "command")
		if json.Unmarshal(a.Arguments, &others) != nil || others == nil {
			others = map[string]any{}
		}
		return a.Name, others
	case "task_tracking":
		if len(a.TaskList) > 0 {
			others["task_list"] = a.TaskList
		}
		return tools.TasksName, others
	}
	return "", nil
}
