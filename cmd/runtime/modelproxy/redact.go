package modelproxy

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// conversations are the request fields that contain the conversation. Each model API uses one of
// them.
var conversations = []string{"messages", "input", "contents"}

// identifiers are message fields whose values are not texts. The API compares or decodes these
// values.
var identifiers = map[string]bool{
	"type": true, "role": true, "id": true, "name": true, "status": true, "call_id": true, "tool_use_id": true,
	"tool_call_id": true, "file_id": true, "media_type": true, "mime_type": true, "mimeType": true, "format": true,
	"detail": true, "signature": true, "encrypted_content": true, "thoughtSignature": true,
}

// files are fields that contain a file in base64 or the text of a document.
var files = map[string]bool{"data": true, "file_data": true}

// redact masks secrets in tool results and in the user's messages. The model's own messages stay
// unchanged, because they may be signed. They should contain no secret, because the model does not
// receive secrets. The body must be valid JSON.
func redact(body []byte, mask func(string) string) []byte {
	r := &redactor{body: body, mask: mask}
	if r.peek() != '{' {
		return body
	}
	r.members(func(field string) {
		switch {
		case !slices.Contains(conversations, field):
			r.skip()
		case r.peek() == '[':
			r.elements(r.message)
		default:
			r.message()
		}
	})
	if r.out == nil {
		return body
	}
	return append(r.out, body[r.copied:]...)
}

// redactor copies a request and masks the texts in the copy. It changes no other byte, because
// providers cache requests with the same beginning.
type redactor struct {
	body []byte
	at   int
	mask func(string) string
	// out is the changed copy of body[:copied], or nil if nothing has changed.
	out    []byte
	copied int
	texts  [][2]int
}

// message masks the secrets in one message. It skips the model's own messages.
func (r *redactor) message() {
	var role, kind string
	r.texts = r.texts[:0]
	if r.peek() != '{' {
		r.collect("", false)
	} else {
		r.members(func(field string) {
			start := r.at
			r.collect(field, false)
			switch field {
			case "role":
				role = string(r.body[start:r.at])
			case "type":
				kind = string(r.body[start:r.at])
			}
		})
	}
	if role == `"assistant"` || role == `"model"` || kind == `"reasoning"` || strings.HasSuffix(kind, `_call"`) {
		return
	}
	for _, text := range r.texts {
		r.redact(text[0], text[1])
	}
}

// collect reads a value and stores the positions of its texts. In a tool's response, every string
// except a data URL is a text.
func (r *redactor) collect(field string, inResponse bool) {
	inResponse = inResponse || field == "response"
	switch r.peek() {
	case '{':
		r.members(func(field string) { r.collect(field, inResponse) })
	case '[':
		r.elements(func() { r.collect(field, inResponse) })
	case '"':
		start := r.at
		r.skipString()
		text := r.body[start:r.at]
		file := files[field] && isBase64(text) || isDataURL(text)
		if inResponse && !isDataURL(text) || !identifiers[field] && !file {
			r.texts = append(r.texts, [2]int{start, r.at})
		}
	default:
		r.skip()
	}
}

func isDataURL(text []byte) bool {
	return bytes.HasPrefix(text, []byte(`"data:`)) && bytes.Contains(text[:min(len(text), 100)], []byte(";base64,"))
}

func isBase64(text []byte) bool {
	return !slices.ContainsFunc(text[1:len(text)-1], func(c byte) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("+/-_=", rune(c))
	})
}

func (r *redactor) redact(start, end int) {
	quoted := r.body[start:end]
	text := string(quoted[1 : len(quoted)-1])
	escaped := strings.Contains(text, `\`)
	if escaped && json.Unmarshal(quoted, &text) != nil {
		return // not possible in valid JSON
	}
	masked := r.mask(text)
	if masked == text {
		return
	}
	r.out = append(r.out, r.body[r.copied:start]...)
	if escaped {
		var out bytes.Buffer
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(masked) // a string can always be encoded
		r.out = append(r.out, bytes.TrimSuffix(out.Bytes(), []byte("\n"))...)
	} else {
		r.out = append(append(append(r.out, '"'), masked...), '"')
	}
	r.copied = end
}

// peek skips white space and returns the next byte, or 0 at the end.
func (r *redactor) peek() byte {
	for ; r.at < len(r.body); r.at++ {
		switch c := r.body[r.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// members reads an object. For each field, it calls read(), which must move r.at past the field's
// value.
func (r *redactor) members(read func(field string)) {
	r.list('}', func() {
		start := r.at
		r.skipString()
		field := string(r.body[start+1 : r.at-1])
		if r.peek() == ':' {
			r.at++
		}
		r.peek()
		read(field)
	})
}

// elements reads a list. For each element, it calls read(), which must move r.at past the element.
func (r *redactor) elements(read func()) { r.list(']', read) }

func (r *redactor) list(end byte, read func()) {
	for r.at++; r.at < len(r.body); {
		switch r.peek() {
		case end:
			r.at++
			return
		case ',':
			r.at++
		default:
			read()
		}
	}
}

func (r *redactor) skip() {
	for depth := 0; r.at < len(r.body); {
		switch r.body[r.at] {
		case '"':
			r.skipString()
			if depth == 0 {
				return
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return // the end of the surrounding value
			}
			if depth == 0 {
				r.at++
				return
			}
		case ',':
			if depth == 0 {
				return
			}
		}
		r.at++
	}
}

func (r *redactor) skipString() {
	for r.at++; r.at < len(r.body); {
		quote := bytes.IndexByte(r.body[r.at:], '"')
		if quote < 0 {
			r.at = len(r.body)
			return
		}
		text := r.body[r.at : r.at+quote]
		r.at += quote + 1
		if escapes := len(text) - len(bytes.TrimRight(text, `\`)); escapes%2 == 0 {
			return
		}
	}
}
