package journal

import (
	"encoding/json"

	"github.com/parley-dev/parley/api/session"
)

// ownWords are fields with fixed words of the runtime, such as "running". They are not masked, even
// if a secret is equal to such a word, because clients must understand them.
var ownWords = map[string]bool{"agent_state": true, "confirmation_state": true}

// maskEvent masks secrets in all fields that may contain external text.
func maskEvent(e session.Event, mask func(string) string) session.Event {
	e.Message = mask(e.Message)
	if e.Content != nil {
		content := mask(*e.Content)
		e.Content = &content
	}
	e.Args, e.Extras = maskFields(e.Args, mask), maskFields(e.Extras, mask)
	if e.ToolCall != nil {
		e.ToolCall = &session.ToolCall{ID: mask(e.ToolCall.ID), Function: mask(e.ToolCall.Function)}
	}
	if e.Meta != nil {
		meta := *e.Meta
		meta.Session = mask(meta.Session)
		e.Meta = &meta
	}
	return e
}

func maskFields(values map[string]any, mask func(string) string) map[string]any {
	masked := maskMap(values, mask)
	for name := range ownWords {
		if word, ok := values[name].(string); ok {
			masked[name] = word
		}
	}
	return masked
}

func maskMap(values map[string]any, mask func(string) string) map[string]any {
	if values == nil {
		return nil
	}
	masked := make(map[string]any, len(values))
	for name, value := range values {
		masked[mask(name)] = maskValue(value, mask)
	}
	return masked
}

func maskValue(value any, mask func(string) string) any {
	switch v := value.(type) {
	case string:
		return mask(v)
	case map[string]any:
		return maskMap(v, mask)
	case []any:
		masked := make([]any, len(v))
		for i := range v {
			masked[i] = maskValue(v[i], mask)
		}
		return masked
	case []string:
		masked := make([]string, len(v))
		for i := range v {
			masked[i] = mask(v[i])
		}
		return masked
	case json.RawMessage:
		var decoded any
		if json.Unmarshal(v, &decoded) != nil {
			return mask(string(v))
		}
		return maskValue(decoded, mask)
	case float64, json.Number:
		text, _ := json.Marshal(v)
		if mask(string(text)) != string(text) {
			return mask(string(text))
		}
		return v
	default: // nil, true, false and the runtime's own numbers
		return v
	}
}
