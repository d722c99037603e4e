package modelproxy

import (
	"bytes"
	"encoding/json"
	"io"
)

// largestEvent bounds the buffer for an event, in bytes. Larger events are forwarded without a
// check, because the event with the usage is small.
const largestEvent = 64 << 10

// usageFilter removes the usage event from a stream of chat completions. The agent did not request
// this event, and may expect a choice in every event.
type usageFilter struct {
	out  io.Writer
	held []byte
	// passing is set while an event that is too large for the buffer is forwarded.
	passing bool
}

func (f *usageFilter) Write(text []byte) (int, error) {
	searched := max(0, len(f.held)-2) // f.held may end with a part of the separator
	f.held = append(f.held, text...)
	rest := f.held
	for end := endOfEvent(rest, searched); end >= 0; end = endOfEvent(rest, 0) {
		if event := rest[:end]; f.passing || !onlyUsage(event) {
			if _, err := f.out.Write(event); err != nil {
				return 0, err
			}
		}
		rest, f.passing = rest[end:], false
	}
	if f.passing || len(rest) > largestEvent {
		f.passing = true
		// Hold back the last two bytes: they may be the beginning of the separator after the event. The
		// next Write may contain the rest of this separator.
		cut := max(0, len(rest)-2)
		if _, err := f.out.Write(rest[:cut]); err != nil {
			return 0, err
		}
		rest = rest[cut:]
	}
	if len(rest) < len(f.held) {
		f.held = append(f.held[:0], rest...)
	}
	return len(text), nil
}

// Close writes the last event if the stream ended in the middle of that event.
func (f *usageFilter) Close() error {
	_, err := f.out.Write(f.held)
	f.held = nil
	return err
}

// endOfEvent returns the position after the first event and its empty line, or -1 if the text
// contains no complete event. The search starts at the given position.
func endOfEvent(text []byte, at int) int {
	for {
		line := bytes.IndexByte(text[at:], '\n')
		if line < 0 {
			return -1
		}
		at += line + 1
		rest := text[at:]
		switch {
		case bytes.HasPrefix(rest, []byte("\n")):
			return at + 1
		case bytes.HasPrefix(rest, []byte("\r\n")):
			return at + 2
		}
	}
}

func onlyUsage(event []byte) bool {
	data, ok := bytes.CutPrefix(bytes.TrimSpace(event), []byte("data:"))
	if !ok {
		return false
	}
	var chunk struct {
		Choices *[]json.RawMessage
		Usage   *json.RawMessage
	}
	err := json.Unmarshal(data, &chunk)
	return err == nil && chunk.Choices != nil && len(*chunk.Choices) == 0 && chunk.Usage != nil
}
