package llm

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"
)

// reasoningField is the field in which several OpenAI-compatible servers return a model's
// reasoning. OpenAI's own server does not return it.
const reasoningField = "reasoning_content"

type openAIModel struct {
	completions openai.ChatCompletionService
	name, key   string
	maxOutput   int

	effort      string
	temperature *float64
}

func newOpenAI(s Settings, name string) Model {
	root := cmp.Or(s.BaseURL, "https://api.openai.com")
	service := openai.NewChatCompletionService(option.WithBaseURL(root+"/v1"), option.WithAPIKey(s.Key),
		option.WithMaxRetries(0)) // the loop retries
	return &openAIModel{completions: service, name: name, key: s.Key, maxOutput: s.MaxOutput,
		effort: s.Effort, temperature: s.Temperature}
}

func (m *openAIModel) Answer(ctx context.Context, r Request, sink Sink) (Answer, error) {
	stream := m.completions.NewStreaming(ctx, m.params(r))
	defer func() { _ = stream.Close() }()
	var a chatAnswer
	for stream.Next() {
		a.add(stream.Current(), sink)
	}
	err := stream.Err()
	if err == nil && a.finish == "" {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return Answer{}, explain(ctx, err, m.key)
	}
	answer := a.answer()
	answer.Message.Model = m.name
	return answer, nil
}

// chatAnswer accumulates the chunks of an answer. The SDK's accumulator rejects some answers of
// servers other than OpenAI's, for example if the chunks of one answer have different IDs.
type chatAnswer struct {
	text, thought strings.Builder
	calls         []*Call
	indexes       []int64
	finish        string
	used          int
	returned      Returned
}

func (a *chatAnswer) add(chunk openai.ChatCompletionChunk, sink Sink) {
	if total := chunk.Usage.PromptTokens + chunk.Usage.CompletionTokens; total > 0 {
		a.used = int(total)
	}
	if len(chunk.Choices) == 0 {
		return
	}
	choice := chunk.Choices[0]
	if choice.FinishReason != "" {
		a.finish = choice.FinishReason
	}
	text := choice.Delta.Content + choice.Delta.Refusal
	a.text.WriteString(text)
	var thought string
	if field, ok := choice.Delta.JSON.ExtraFields[reasoningField]; ok {
		_ = json.Unmarshal([]byte(field.Raw()), &thought) // ignore anything but a string
	}
	a.thought.WriteString(thought)
	a.returned.take(messageFields, choice.Delta.JSON.ExtraFields)
	sink(text, thought)
	for _, piece := range choice.Delta.ToolCalls {
		call := a.call(piece.Index, piece.ID)
		if piece.ID != "" {
			call.ID = piece.ID
		}
		call.Name += piece.Function.Name
		call.Input += piece.Function.Arguments
		call.Returned.take(callFields, piece.JSON.ExtraFields)
	}
}

// call returns the call that a chunk belongs to. It compares the index and the ID, because some
// servers give all calls the index 0.
func (a *chatAnswer) call(index int64, id string) *Call {
	for i := len(a.calls) - 1; i >= 0; i-- {
		if a.indexes[i] == index && (id == "" || a.calls[i].ID == "" || a.calls[i].ID == id) {
			return a.calls[i]
		}
	}
	a.calls, a.indexes = append(a.calls, &Call{}), append(a.indexes, index)
	return a.calls[len(a.calls)-1]
}

func (a *chatAnswer) answer() Answer {
	answer := Answer{Stop: StopEnd, Used: a.used, Message: Message{Role: Assistant, Returned: a.returned}}
	if a.thought.Len() > 0 {
		answer.Message.Parts = append(answer.Message.Parts, Part{Thinking: &Thinking{Text: a.thought.String()}})
	}
	if a.text.Len() > 0 {
		answer.Message.Parts = append(answer.Message.Parts, Part{Text: a.text.String()})
	}
	for _, call := range a.calls {
		answer.Message.Parts = append(answer.Message.Parts, Part{Call: call})
		answer.Stop = StopTools
	}
	switch a.finish {
	case "length":
		answer.Stop = StopLength
	case "content_filter":
		answer.Stop = StopRefusal
	}
	return answer
}

func (m *openAIModel) params(r Request) openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{
		Model:         m.name,
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: param.NewOpt(true)},
	}
	p.ReasoningEffort = shared.ReasoningEffort(m.effort)
	if m.temperature != nil {
		p.Temperature = param.NewOpt(*m.temperature)
	}
	if m.maxOutput > 0 {
		p.MaxCompletionTokens = param.NewOpt(r.maxOutput(m.maxOutput))
	}
	if r.System != "" {
		p.Messages = append(p.Messages, openai.SystemMessage(r.System))
	}
	for _, message := range r.Messages {
		p.Messages = append(p.Messages, m.chatMessages(message)...)
	}
	if strings.Contains(m.name, "claude") {
		markCache(p.Messages)
	}
	for _, tool := range r.Tools {
		p.Tools = append(p.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
			Name: tool.Name, Description: param.NewOpt(tool.Description), Parameters: tool.Schema}))
	}
	return p
}

// chatMessages converts a message for this API. Each tool result becomes a message of its own. The
// images of the result follow in a user message, because tool messages cannot hold images.
func (m *openAIModel) chatMessages(message Message) []openai.ChatCompletionMessageParamUnion {
	if message.Role == Assistant {
		return m.assistantMessage(message)
	}
	var out []openai.ChatCompletionMessageParamUnion
	var parts []openai.ChatCompletionContentPartUnionParam
	for _, part := range message.Parts {
		switch {
		case part.Result != nil:
			out = append(out, openai.ToolMessage(part.Result.Text, part.Result.CallID))
			for _, image := range part.Result.Images {
				parts = append(parts, chatImage(image))
			}
		case part.Image != nil:
			parts = append(parts, chatImage(*part.Image))
		case !blank(part.Text):
			parts = append(parts, openai.TextContentPart(part.Text))
		}
	}
	if len(parts) > 0 {
		out = append(out, openai.UserMessage(parts))
	}
	return out
}

func (m *openAIModel) assistantMessage(message Message) []openai.ChatCompletionMessageParamUnion {
	var out openai.ChatCompletionAssistantMessageParam
	own, extra := message.Model == m.name, map[string]any{}
	if own {
		message.Returned.add(extra)
	}
	for _, part := range message.Parts {
		if part.Thinking != nil && part.Thinking.Signature == "" && part.Thinking.Text != "" &&
			(own || message.Model == "") {
			extra[reasoningField] = part.Thinking.Text
		}
		if part.Call == nil {
			continue
		}
		call := openai.ChatCompletionMessageFunctionToolCallParam{ID: part.Call.ID}
		call.Function.Name, call.Function.Arguments = part.Call.Name, string(part.Call.arguments())
		call.SetExtraFields(m.extraOfCall(part.Call, len(out.ToolCalls) == 0, own))
		out.ToolCalls = append(out.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{OfFunction: &call})
	}
	out.SetExtraFields(extra)
	if text := message.Text(); text != "" {
		out.Content.OfString = param.NewOpt(text)
	} else if len(out.ToolCalls) == 0 {
		return nil
	}
	return []openai.ChatCompletionMessageParamUnion{{OfAssistant: &out}}
}

func chatImage(image Image) openai.ChatCompletionContentPartUnionParam {
	return openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:" + image.MediaType +
		";base64," + image.Data})
}

// blank reports whether a text is empty or white space, which Anthropic's API rejects.
func blank(text string) bool { return strings.TrimSpace(text) == "" }
