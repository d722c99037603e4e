package rest

import (
	"encoding/json"
	"regexp"
	"strconv"
)

// conversationName is what a Conversation may be called, as its schema says.
var conversationName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$`)

// maxReplay is what a ConfigMap has room for.
const maxReplay = 1 << 20

// decodeConversation knows every field: what it does not know the client would believe to have been heard.
func decodeConversation(fields map[string]json.RawMessage) (*ConversationRequest, []Detail) {
	d := &decoder{}
	o := d.body(fields)
	r := &ConversationRequest{
		Repository:               textOrNothing(o, "repository").Value,
		GitProvider:              textOrNothing(o, "git_provider").Value,
		SelectedBranch:           textOrNothing(o, "selected_branch").Value,
		InitialUserMsg:           textOrNothing(o, "initial_user_msg").Value,
		ReplayJSON:               textOrNothing(o, "replay_json").Value,
		SuggestedTask:            optional(o, "suggested_task", suggestedTask).Value,
		CreateMicroagent:         optional(o, "create_microagent", createMicroagent).Value,
		ConversationInstructions: textOrNothing(o, "conversation_instructions").Value,
		MCPConfig:                optional(o, "mcp_config", mcpDecoder{strict: true}.config).Value,
		ConversationID:           optional(o, "conversation_id", text).Value,
	}
	if urls := optional(o, "image_urls", list(text)).Value; urls != nil && len(*urls) > 0 {
		r.ImageURLs = *urls
	}
	if id := r.ConversationID; id != nil && !conversationName.MatchString(*id) {
		o.fail(o.loc.at("conversation_id"), "string_pattern_mismatch", "String should be a DNS label of at most 53 characters: lower-case letters, digits and -")
	}
	if replay := r.ReplayJSON; replay != nil {
		switch {
		case len(*replay) > maxReplay:
			o.fail(o.loc.at("replay_json"), "string_too_long", "String should have at most "+strconv.Itoa(maxReplay)+" bytes")
		case !json.Valid([]byte(*replay)):
			o.fail(o.loc.at("replay_json"), "json_invalid", "Invalid JSON")
		}
	}
	o.forbidOthers()
	return r, d.details
}

func suggestedTask(d *decoder, loc location, raw json.RawMessage) (SuggestedTask, bool) {
	o := d.object(loc, raw)
	if o == nil {
		return SuggestedTask{}, false
	}
	task := SuggestedTask{
		GitProvider: required(o, "git_provider", text),
		TaskType:    required(o, "task_type", text),
		Repo:        required(o, "repo", text),
		IssueNumber: required(o, "issue_number", integer),
		Title:       required(o, "title", text),
	}
	o.forbidOthers()
	return task, true
}

func createMicroagent(d *decoder, loc location, raw json.RawMessage) (CreateMicroagent, bool) {
	o := d.object(loc, raw)
	if o == nil {
		return CreateMicroagent{}, false
	}
	microagent := CreateMicroagent{
		Repo:        required(o, "repo", text),
		GitProvider: textOrNothing(o, "git_provider").Value,
		Title:       textOrNothing(o, "title").Value,
	}
	o.forbidOthers()
	return microagent, true
}
