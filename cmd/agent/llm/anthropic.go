package llm

import (
	"cmp"
	"context"
	"encoding/json"
	"io"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"
)

// defaultMaxOutput limits an answer, in tokens, if the settings contain no limit. The messages API
// requires a limit, and all current models support this value.
const defaultMaxOutput = 16000

type anthropicModel struct {
	messages  anthropic.MessageService
	name, key string
	maxOutput int

	effort      string
	temperature *float64
}

func newAnthropic(s Settings, name string) Model {
	// anthropic.NewClient would read keys and URLs from environment variables that the user may
	// have set for other programs. NewMessageService does not read them.
	service := anthropic.NewMessageService(option.WithBaseURL(cmp.Or(s.BaseURL,
		"https://api.anthropic.com")), option.WithAPIKey(s.Key),
		option.WithMaxRetries(0)) // the loop retries
	return &anthropicModel{messages: service, name: name, key: s.Key,
		maxOutput: cmp.Or(s.MaxOutput, defaultMaxOutput), effort: s.Effort, temperature: s.Temperature}
}

func (m *anthropicModel) Answer(ctx context.Context, r Request, sink Sink) (Answer, error) {
	stream := m.messages.NewStreaming(ctx, m.params(r))
	defer func() { _ = stream.Close() }()
	var message anthropic.Message
	ended := false
	for stream.Next() {
		event := stream.Current()
		if err := message.Accumulate(event); err != nil {
			return Answer{}, &Error{Kind: Provider, Message: "The model's answer could not be read.",
				Transient: true}
		}
		ended = event.Type == "message_stop"
		sink(event.Delta.Text, event.Delta.Thinking)
	}
	err := stream.Err()
	if err == nil && !ended {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return Answer{}, explain(ctx, err, m.key)
	}
	answer := anthropicAnswer(message)
	answer.Message.Model = m.name
	return answer, nil
}

func anthropicAnswer(message anthropic.Message) Answer {
	answer := Answer{Stop: StopEnd, Message: Message{Role: Assistant}}
	for _, block := range message.Content {
		var part Part
		switch block.Type {
		case "text":
			if block.Text == "" {
				continue
			}
			part.Text = block.Text
		case "thinking":
			part.Thinking = &Thinking{Text: block.Thinking, Signature: block.Signature}
		case "redacted_thinking":
			part.Thinking = &Thinking{Redacted: block.Data}
		case "tool_use":
			part.Call = &Call{ID: block.ID, Name: block.Name, Input: string(block.Input)}
			answer.Stop = StopTools
		default:
			continue
		}
		answer.Message.Parts = append(answer.Message.Parts, part)
	}
	switch message.StopReason {
	case anthropic.StopReasonMaxTokens, anthropic.StopReasonModelContextWindowExceeded:
		answer.Stop = StopLength
	case anthropic.StopReasonRefusal:
		answer.Stop = StopRefusal
	}
	u := message.Usage
	answer.Used = int(u.InputTokens + u.CacheCreationInputTokens + u.CacheReadInputTokens + u.OutputTokens)
	return answer
}

// params builds the request. It puts cache markers after the parts that do not change between
// calls: tools, system prompt and history.
func (m *anthropicModel) params(r Request) anthropic.MessageNewParams {
	cached := anthropic.NewCacheControlEphemeralParam()
	p := anthropic.MessageNewParams{Model: m.name, MaxTokens: r.maxOutput(m.maxOutput)}
	if r.System != "" {
		p.System = []anthropic.TextBlockParam{{Text: r.System, CacheControl: cached}}
	}
	for i, tool := range r.Tools {
		// Encode the schema here, because the SDK writes unknown fields in random order. Each new
		// order would invalidate the cache.
		encoded, _ := json.Marshal(tool.Schema) // cannot fail: schemas come from JSON or from this program
		schema := param.Override[anthropic.ToolInputSchemaParam](json.RawMessage(encoded))
		t := &anthropic.ToolParam{Name: tool.Name, Description: param.NewOpt(tool.Description), InputSchema: schema}
		if i == len(r.Tools)-1 {
			t.CacheControl = cached
		}
		p.Tools = append(p.Tools, anthropic.ToolUnionParam{OfTool: t})
	}
	m.setEffort(&p, r.Messages)
	for _, message := range mergeRoles(r.Messages) {
		blocks := anthropicBlocks(message)
		if len(blocks) == 0 {
			continue
		}
		p.Messages = append(p.Messages, anthropic.MessageParam{Role: anthropic.MessageParamRole(message.Role),
			Content: blocks})
	}
	if n := len(p.Messages); n > 0 {
		content := p.Messages[n-1].Content
		if control := content[len(content)-1].GetCacheControl(); control != nil {
			*control = cached
		}
	}
	return p
}

func anthropicBlocks(message Message) []anthropic.ContentBlockParamUnion {
	var blocks []anthropic.ContentBlockParamUnion
	for _, part := range message.Parts {
		switch {
		case part.Image != nil:
			blocks = append(blocks, anthropic.NewImageBlockBase64(part.Image.MediaType, part.Image.Data))
		case part.Call != nil:
			blocks = append(blocks, anthropic.NewToolUseBlock(anthropicID(part.Call.ID),
				part.Call.arguments(), part.Call.Name))
		case part.Result != nil:
			blocks = append(blocks, anthropic.ContentBlockParamUnion{OfToolResult: anthropicResult(part.Result)})
		case part.Thinking != nil && part.Thinking.Redacted != "":
			blocks = append(blocks, anthropic.NewRedactedThinkingBlock(part.Thinking.Redacted))
		case part.Thinking != nil && part.Thinking.Signature != "":
			blocks = append(blocks, anthropic.NewThinkingBlock(part.Thinking.Signature, part.Thinking.Text))
		case !blank(part.Text):
			blocks = append(blocks, anthropic.NewTextBlock(part.Text))
		}
	}
	return blocks
}

func anthropicResult(result *Result) *anthropic.ToolResultBlockParam {
	block := &anthropic.ToolResultBlockParam{ToolUseID: anthropicID(result.CallID), IsError: param.NewOpt(result.IsError)}
	if !blank(result.Text) {
		block.Content = append(block.Content, anthropic.ToolResultBlockParamContentUnion{OfText: &anthropic.TextBlockParam{
			Text: result.Text}})
	}
	for _, image := range result.Images {
		source := anthropic.Base64ImageSourceParam{MediaType: anthropic.Base64ImageSourceMediaType(image.MediaType),
			Data: image.Data}
		block.Content = append(block.Content, anthropic.ToolResultBlockParamContentUnion{
			OfImage: &anthropic.ImageBlockParam{Source: anthropic.ImageBlockParamSourceUnion{OfBase64: &source}}})
	}
	return block
}
