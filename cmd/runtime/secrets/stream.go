package secrets

import (
	"bytes"
	"io"
	"strings"
)

// Stream masks text and forwards it immediately. It buffers only the end of the text, if a secret
// may begin there. Close writes the buffered text.
type Stream struct {
	mask *mask
	out  io.Writer
	held []byte
}

// Stream returns a Stream that writes to out. It masks the secrets that the Store has at the time
// of this call.
func (s *Store) Stream(out io.Writer) *Stream { return &Stream{mask: s.mask.Load(), out: out} }

// MaskUnfinished masks secrets in an unfinished text. It removes the end of the text if a secret
// may begin there.
func (s *Store) MaskUnfinished(text string) string {
	var out strings.Builder
	_, _ = s.Stream(&out).Write([]byte(text)) // a Builder does not fail
	return out.String()
}

func (m *Stream) Write(text []byte) (int, error) {
	held := len(m.held)
	m.held = append(m.held, text...)
	certain := m.certain()
	if _, err := m.out.Write([]byte(m.mask.replacer.Replace(string(m.held[:certain])))); err != nil {
		return max(0, certain-held), err
	}
	m.held = append(m.held[:0], m.held[certain:]...)
	return len(text), nil
}

// certain returns the length of the buffered text before the first position at which an incomplete
// secret may begin.
func (m *Stream) certain() int {
	for i := 0; i < len(m.held); i++ {
		rest, matched := m.held[i:], 0
		for _, form := range m.mask.byFirst[m.held[i]] { // the longest first
			if len(form) > len(rest) && string(rest) == form[:len(rest)] {
				return i
			}
			if matched == 0 && bytes.HasPrefix(rest, []byte(form)) {
				matched = len(form)
			}
		}
		i += max(0, matched-1)
	}
	return len(m.held)
}

// Close writes the buffered text. It does not close the underlying writer.
func (m *Stream) Close() error {
	_, err := m.out.Write([]byte(m.mask.replacer.Replace(string(m.held))))
	m.held = nil
	return err
}
