package loop

import (
	"context"
	"encoding/json"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

const (
	interruptedByRestart = "This command was interrupted by a restart of the agent, and may be partly done. It was " +
		"not run again. Check its effects before you continue."
	rejectedByUser = "The user rejected this action; it was not executed. Do not try it in another way: continue " +
		"without it, or ask."
	cutCall = "Your answer reached its maximum length, so this call may be incomplete and was not executed. Send " +
		"smaller calls, for example with one part of the file each."
)

// describe returns the update that announces a call to the client.
func (s *Session) describe(ctx context.Context, call *llm.Call) acp.Update {
	update := acp.Update{Kind: acp.NewToolCall, ToolCallID: call.ID, Title: call.Name, ToolKind: "other",
		Status: acp.Pending}
	if tool := s.tools.Find(ctx, call.Name); tool != nil {
		description, raw := tool.Describe(call.Input)
		update.Title, update.ToolKind, update.Locations, update.RawInput = description.Title, description.Kind,
			description.Locations, raw
		return update
	}
	update.RawInput, _ = json.Marshal(call.Input)
	return update
}

func (s *Session) runNext(ctx context.Context, pending []*llm.Call) error {
	call := pending[0]
	tool := s.tools.Find(ctx, call.Name)
	switch {
	case s.state.begun[call.ID]:
		return s.failCall(call, interruptedByRestart)
	case tool == nil:
		return s.failCall(call, "There is no tool with this name.")
	case s.state.stop == llm.StopLength && len(pending) == 1:
		return s.failCall(call, cutCall)
	}
	description, _ := tool.Describe(call.Input)
	if description.Acts && s.options.Confirm && !s.state.allowed[call.ID] {
		return s.askUser(ctx, call)
	}
	if description.Acts {
		begun := acp.Update{Kind: acp.ToolUpdate, ToolCallID: call.ID, Status: acp.InProgress}
		if err := s.record(turnlog.Record{Kind: turnlog.KindBegun, CallID: call.ID}, begun); err != nil {
			return err
		}
	}
	s.shell.Progress = func(output string) {
		s.sendPartial(acp.Update{Kind: acp.ToolUpdate, ToolCallID: call.ID, Status: acp.InProgress,
			Content: textContent(output)})
	}
	return s.result(call, tool.Run(ctx, call.Input))
}

func textContent(text string) []acp.ToolContent {
	return []acp.ToolContent{{Type: "content", Content: acp.Text(text)}}
}

// askUser asks the user whether to execute a call, and records the answer. It does not execute the
// call. If the user allowed the call, the next runNext() executes it.
func (s *Session) askUser(ctx context.Context, call *llm.Call) error {
	toolCall := s.describe(ctx, call)
	toolCall.Kind = ""
	var answer acp.PermissionResult
	err := s.client.Call(ctx, acp.MethodRequestPermission, acp.PermissionParams{SessionID: s.id, ToolCall: toolCall,
		Options: []acp.PermissionOption{
			{OptionID: acp.AllowOnce, Name: "Allow", Kind: acp.AllowOnce},
			{OptionID: acp.RejectOnce, Name: "Reject", Kind: acp.RejectOnce},
		}}, &answer)
	switch {
	case err != nil:
		return err
	case answer.Outcome.Outcome == "cancelled":
		s.Cancel()
		return ctx.Err()
	case answer.Outcome.OptionID == acp.AllowOnce:
		return s.record(turnlog.Record{Kind: turnlog.KindAllowed, CallID: call.ID})
	}
	reason := rejectedByUser
	if said, _ := answer.Meta[acp.MetaReason].(string); said != "" {
		reason += " The user's reason: " + said
	}
	return s.failCall(call, reason)
}

// failCall records the failure of a call that was not executed, or was interrupted.
func (s *Session) failCall(call *llm.Call, reason string) error {
	return s.result(call, tools.Outcome{Text: reason, IsError: true})
}

func (s *Session) result(call *llm.Call, outcome tools.Outcome) error {
	text := outcome.Text
	if text == "" {
		text = "[There is no output.]"
	}
	update := acp.Update{Kind: acp.ToolUpdate, ToolCallID: call.ID, Status: acp.Completed, RawOutput: outcome.Raw}
	if outcome.IsError {
		update.Status = acp.Failed
	}
	if len(outcome.Images) > 0 && s.blind() {
		text, outcome.Images = text+"\n"+imagesRefused, nil
	}
	content := textContent(text)
	for _, image := range outcome.Images {
		content = append(content, acp.ToolContent{Type: "content", Content: &acp.Content{Type: "image", Data: image.Data,
			MimeType: image.MediaType}})
	}
	if outcome.Diff != nil {
		content = append(content, *outcome.Diff)
	}
	update.Content = content
	updates := []acp.Update{update}
	if outcome.Plan != nil {
		updates = append(updates, acp.Update{Kind: acp.Plan, Entries: outcome.Plan})
	}
	learned, problems := s.entered(outcome.Paths)
	err := s.record(turnlog.Record{
		Kind: turnlog.KindResult, CallID: call.ID, Shell: outcome.Shell, Waiting: outcome.Waiting, Learned: learned,
		Result: &llm.Result{CallID: call.ID, Text: text, IsError: outcome.IsError, Images: outcome.Images},
	}, updates...)
	if err != nil {
		return err
	}
	return s.announce(problems...)
}
