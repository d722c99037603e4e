package loop

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

const (
	// maxRepairs limits the repairs of the history for one request.
	maxRepairs = 2
	// maxImageRefusals is the number of refusals after which a model gets no more images.
	maxImageRefusals = 2
)

const (
	removedImage   = "[An image was here. The model's provider refused it, so you cannot see it.]"
	olderImage     = "[An image was here. It was removed because the conversation became too large.]"
	imagesRefused  = "[There is an image, but the model's provider refuses images, so you cannot see it.]"
	noticeImages   = "The model's provider refused images of this conversation. The model cannot see them any more."
	noticeOlder    = "The conversation has too many bytes for one request. The model cannot see earlier images any more."
	noticeThinking = "The model's provider refused reasoning in this conversation. The reasoning was removed."
	noticeToolCall = "The model's provider refused tool calls of this conversation. They were rewritten as text."
)

// repair changes the part of the history that the provider refused. It returns false if there is
// nothing to change.
func (s *Session) repair(ctx context.Context, refused llm.Refusal) (bool, error) {
	r := turnlog.Record{Kind: turnlog.KindRepaired, Model: s.options.ModelName, Images: hasPart(s.state.history, hasImage)}
	if refused == llm.RefusedHistory {
		r.Calls = s.callIDs(func(call *llm.Call) bool {
			return !llm.ValidName(call.Name) || s.tools.Find(ctx, call.Name) == nil
		})
	}
	if refused == llm.RefusedHistory && !r.Images && len(r.Calls) == 0 {
		// The refused part is unknown, so change every part that a provider may refuse.
		r.Calls = s.callIDs(func(*llm.Call) bool { return true })
		r.Thinking = hasPart(s.state.history, func(p llm.Part) bool { return p.Thinking != nil })
	}
	var updates []acp.Update
	if r.Images {
		updates = append(updates, notice(noticeImages))
	}
	if len(r.Calls) > 0 {
		updates = append(updates, notice(noticeToolCall))
	}
	if r.Thinking {
		updates = append(updates, notice(noticeThinking))
	}
	if len(updates) == 0 {
		return false, nil
	}
	return true, s.record(r, updates...)
}

// removeOlderImages turns the images before the user's latest message into text. It returns false if
// there are none.
func (s *Session) removeOlderImages() (bool, error) {
	if !hasPart(s.state.history[:s.state.latestAt], hasImage) {
		return false, nil
	}
	r := turnlog.Record{Kind: turnlog.KindRepaired, Model: s.options.ModelName, OlderImages: true}
	return true, s.record(r, notice(noticeOlder))
}

func (s *Session) callIDs(matches func(*llm.Call) bool) (ids []string) {
	for _, message := range s.state.history {
		for _, call := range message.Calls() {
			if matches(call) {
				ids = append(ids, call.ID)
			}
		}
	}
	return ids
}

func hasPart(messages []llm.Message, matches func(llm.Part) bool) bool {
	return slices.ContainsFunc(messages, func(m llm.Message) bool { return slices.ContainsFunc(m.Parts, matches) })
}

func hasImage(p llm.Part) bool { return p.Image != nil || p.Result != nil && len(p.Result.Images) > 0 }

// repair applies a KindRepaired record to the history.
func (s *state) repair(r turnlog.Record) {
	calls := map[string]bool{}
	for _, id := range r.Calls {
		calls[id] = true
	}
	if r.Images {
		s.imageRefusals[r.Model]++
	}
	repaired := func(message llm.Message) llm.Message {
		parts := make([]llm.Part, 0, len(message.Parts))
		for _, part := range message.Parts {
			if part = withoutCall(part, calls); r.Images {
				part = withoutImage(part, removedImage)
			}
			// Drop reasoning if the record removes it (r.Thinking). Also drop it if calls became text,
			// because providers may refuse reasoning without its call.
			if part.Thinking == nil || len(calls) == 0 && !r.Thinking {
				parts = append(parts, part)
			}
		}
		message.Parts = parts
		return message
	}
	if r.OlderImages {
		s.removeOlderImages()
	}
	for i, message := range s.history {
		s.history[i] = repaired(message)
	}
	if first, same := s.first, s.first == s.latest; first != nil {
		s.first = new(repaired(*first))
		if same {
			s.latest = s.first
		} else {
			s.latest = new(repaired(*s.latest))
		}
	}
	s.used, s.usedAt = 0, 0
}

func (s *state) removeOlderImages() {
	for i, message := range s.history[:s.latestAt] {
		parts := make([]llm.Part, 0, len(message.Parts))
		for _, part := range message.Parts {
			parts = append(parts, withoutImage(part, olderImage))
		}
		s.history[i].Parts = parts
	}
}

func withoutCall(part llm.Part, calls map[string]bool) llm.Part {
	switch {
	case part.Call != nil && calls[part.Call.ID]:
		return llm.Part{Text: fmt.Sprintf("[A call of the tool %s with the input %s.]", part.Call.Name, part.Call.Input)}
	case part.Result != nil && calls[part.Result.CallID]:
		text := "[The result of a call: " + part.Result.Text + "]"
		if len(part.Result.Images) > 0 {
			text += "\n" + removedImage
		}
		return llm.Part{Text: text}
	}
	return part
}

func withoutImage(part llm.Part, text string) llm.Part {
	switch {
	case part.Image != nil:
		return llm.Part{Text: text}
	case part.Result != nil && len(part.Result.Images) > 0:
		result := *part.Result
		result.Images, result.Text = nil, result.Text+"\n"+text
		return llm.Part{Result: &result}
	}
	return part
}

// blind reports whether the model gets no more images because its provider has refused images too
// often.
func (s *Session) blind() bool { return s.state.imageRefusals[s.options.ModelName] >= maxImageRefusals }

// attached returns an attached image as a part of the message. If the model cannot see the image,
// the part is a text that says why.
func (s *Session) attached(encoded string) llm.Part {
	if s.blind() {
		return llm.Part{Text: imagesRefused}
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		data = nil
	}
	image, err := llm.NewImage(data)
	if err != nil {
		return llm.Part{Text: fmt.Sprintf("[An image belongs to this message, but you cannot see it: %v.]", err)}
	}
	return llm.Part{Image: image}
}
