package rest

import (
	"encoding/json"
	"regexp"
	"strconv"

	"github.com/parley-dev/parley/api/recording"
)

// ConversationID matches a valid conversation ID. The CRD has the same pattern.
var ConversationID = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$`)

// maxReplay is the maximum size of a recording, in bytes. It is the size limit of a ConfigMap.
const maxReplay = 1 << 20

// DecodeConversation reads the body of POST /api/conversations. An unknown field is an error.
func DecodeConversation(body []byte) (*ConversationRequest, []Detail) {
	return decodeBody(body, conversation)
}

func conversation(o *object) *ConversationRequest {
	r := &ConversationRequest{
		Repository:               textOrNothing(o, "repository"),
		GitProvider:              textOrNothing(o, "git_provider"),
		SelectedBranch:           textOrNothing(o, "selected_branch"),
		InitialUserMsg:           textOrNothing(o, "initial_user_msg"),
		ReplayJSON:               textOrNothing(o, "replay_json"),
		SuggestedTask:            optional(o, "suggested_task", structure(suggestedTask)),
		CreateMicroagent:         optional(o, "create_microagent", structure(createMicroagent)),
		ConversationInstructions: textOrNothing(o, "conversation_instructions"),
		Agent:                    textOrNothing(o, "agent"),
		LLMModel:                 textOrNothing(o, "llm_model"),
		MCPConfig:                optional(o, "mcp_config", structure(mcpDecoder{}.config)),
		OneShot:                  optional(o, "one_shot", boolean),
		ConversationID:           optional(o, "conversation_id", text),
	}
	if images := orZero(optional(o, "image_urls", list(image))); len(images) > 0 {
		r.ImageURLs = images
	}
	if id := r.ConversationID; id != nil && !ConversationID.MatchString(*id) {
		o.fail(o.loc.At("conversation_id"), "string_pattern_mismatch", "String should be a DNS label of at most 53 "+
			"characters: lower-case letters, digits and -")
	}
	if replay := r.ReplayJSON; replay != nil {
		switch {
		case len(*replay) > maxReplay:
			o.fail(o.loc.At("replay_json"), "string_too_long", "String should have at most "+strconv.Itoa(maxReplay)+" bytes")
		case !json.Valid([]byte(*replay)):
			o.fail(o.loc.At("replay_json"), "json_invalid", "Invalid JSON")
		case !recording.Valid([]byte(*replay)):
			o.fail(o.loc.At("replay_json"), "value_error", "Value error, replay_json should be a list of events, or an "+
				`object with this list in the field "trajectory"`)
		}
	}
	o.forbidOthers()
	return r
}

func suggestedTask(o *object) SuggestedTask {
	return SuggestedTask{
		GitProvider: required(o, "git_provider", text),
		TaskType:    required(o, "task_type", text),
		Repo:        required(o, "repo", text),
		IssueNumber: required(o, "issue_number", integer),
		Title:       required(o, "title", text),
	}
}

func createMicroagent(o *object) CreateMicroagent {
	return CreateMicroagent{
		Repo:        required(o, "repo", text),
		GitProvider: textOrNothing(o, "git_provider"),
		Title:       textOrNothing(o, "title"),
	}
}
