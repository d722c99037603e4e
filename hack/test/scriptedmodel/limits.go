package scriptedmodel

import "fmt"

// maxTools is the number of tools that OpenAI accepts in a request.
const maxTools = 128

const (
	charactersPerToken = 4
	tokensPerImage     = 1000
)

// count sets Tokens to an estimate of the request's size.
func (r *Request) count() {
	characters, images := len(r.System), 0
	for _, tool := range r.Tools {
		characters += len(tool.Name) + len(tool.Description) + len(tool.Schema)
	}
	for _, turn := range r.Turns {
		images += turn.Images
		characters += len(turn.Text)
		for _, call := range turn.Calls {
			characters += len(call.Name) + len(call.Input)
		}
		for _, result := range turn.Results {
			characters += len(result.Text)
		}
	}
	r.Tokens = characters/charactersPerToken + images*tokensPerImage
}

// refusal returns the error for a valid request that is too long, or that contains an image which
// the model does not support. Otherwise it returns nil.
func (s Script) refusal(r *Request) *Failure {
	if s.TextOnly {
		for i, turn := range r.Turns {
			if turn.Images == 0 {
				continue
			}
			if r.Wire == Messages {
				return &Failure{Kind: BadRequest, Message: fmt.Sprintf("messages.%d: '%s' does not support image input.", i,
					r.Model)}
			}
			return &Failure{Kind: BadRequest, Message: "Invalid content type. image_url is only supported by certain models."}
		}
	}
	if s.Window == 0 || r.Tokens+r.MaxTokens <= s.Window {
		return nil
	}
	failure := &Failure{Kind: ContextTooLong}
	switch {
	case r.Wire == Messages && r.Tokens > s.Window:
		failure.Message = fmt.Sprintf("prompt is too long: %d tokens > %d maximum", r.Tokens, s.Window)
	case r.Wire == Messages:
		failure.Message = fmt.Sprintf("input length and `max_tokens` exceed context limit: %d + %d > %d, decrease input "+
			"length or `max_tokens` and try again", r.Tokens, r.MaxTokens, s.Window)
	default:
		failure.Message = fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d tokens "+
			"(%d in the messages, %d in the completion). Please reduce the length of the messages or completion.", s.Window,
			r.Tokens+r.MaxTokens, r.Tokens, r.MaxTokens)
	}
	return failure
}
