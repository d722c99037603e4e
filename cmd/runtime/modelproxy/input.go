package modelproxy

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
)

// toolsField is the request field that lists the tools that the model may call.
const toolsField = "tools"

// addingFields are request fields that make the provider add input to the request, such as earlier
// messages, stored prompts and the results of searches.
var addingFields = []string{"previous_response_id", "conversation", "prompt", "cachedContent", "cached_content",
	"container", "enable_search", "mcp_servers", "plugins", "prompt_id", "search_parameters", "web_search_options"}

// attachment matches a file in a request, or a reference to a file. Even a file of few bytes, such
// as a picture of one color, can cost a large number of tokens. The pattern does not match the text
// of a message, because quotes within JSON strings are escaped.
var attachment = regexp.MustCompile(`"(?:(?i:url|image_url|file_url|file_data|file_id|fileUri|file_uri|media_type|` +
	`mime_type|mimeType)"\s*:\s*"|input_audio"\s*:\s*\{)`)

// itemReference matches a reference to an earlier item in the responses API. A reference has the
// type item_reference or null, or it has an ID and no type. All alternatives of the pattern begin
// with a quote, because the search is slow otherwise.
var itemReference = regexp.MustCompile(`"(?:item_reference"|id"\s*:\s*"[^"]*"\s*\}|type"\s*:\s*null)`)

// escapedLetter matches an escaped ASCII letter, which could hide a field from the other patterns.
var escapedLetter = regexp.MustCompile(`\\u00(?:[46][1-9a-fA-F]|5[0-9aAfF]|7[0-9aA])`)

// cacheTTL matches the field that sets how long Anthropic stores input in its cache. A long time
// costs more.
var cacheTTL = regexp.MustCompile(`"ttl"\s*:`)

// agentTool matches the types of tools that the agent runs. The provider runs all other tools, and
// adds their results to the input.
var agentTool = regexp.MustCompile(`^"(?:function|custom|local_shell|apply_patch|computer|computer_use_preview|` +
	`(?:computer|bash|text_editor|memory)_[0-9]+)"$`)

// addsInput returns true in two cases: the provider may add input to the call, or the size of the
// request does not bound the number of input tokens.
func (a *ask) addsInput(wire wire) bool {
	return slices.ContainsFunc(addingFields, func(name string) bool { return !isEmpty(a.fields[name]) }) ||
		a.hasProviderTool(wire) || attachment.Match(a.body) || wire == responses && itemReference.Match(a.body)
}

func isEmpty(value json.RawMessage) bool {
	text := string(bytes.TrimSpace(value))
	return slices.Contains([]string{"", "null", "false", "[]", "{}", `""`}, text)
}

// hasProviderTool reports whether the request has a tool that the provider runs.
func (a *ask) hasProviderTool(wire wire) bool {
	if isEmpty(a.fields[toolsField]) {
		return false
	}
	var tools []map[string]json.RawMessage
	if json.Unmarshal(a.fields[toolsField], &tools) != nil {
		return true
	}
	return slices.ContainsFunc(tools, func(tool map[string]json.RawMessage) bool {
		if wire != google {
			return tool["type"] != nil && !agentTool.Match(tool["type"])
		}
		delete(tool, "functionDeclarations")
		delete(tool, "function_declarations")
		return len(tool) > 0
	})
}

// drawsImages reports whether OpenAI may draw images for the call. Images are expensive, and the
// usage in the response does not include them.
func (a *ask) drawsImages() bool {
	var tools []struct{ Type string }
	return json.Unmarshal(a.fields[toolsField], &tools) == nil && slices.ContainsFunc(tools,
		func(tool struct{ Type string }) bool { return tool.Type == "image_generation" })
}
