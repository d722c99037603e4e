package modelproxy

import (
	"bytes"
	"encoding/json"
	"io"
)

// largestEvent is how much of an event is held back to see what it is. That with the usage is
// small.
const largestEvent = 64 << 10

// newUsageFilter takes the event out of a stream of chat completions that holds nothing but the
// usage. It is there because the proxy asked for it, and a client that did not may take the first
// choice of every event.
func newUsageFilter(out io.Writer) *splitter {
	return &splitter{limit: largestEvent, take: func(event []byte, whole bool) error {
		if whole && onlyUsage(event) {
			return nil
		}
		_, err := out.Write(event)
		return err
	}}
}

// splitter cuts a stream into its events.
type splitter struct {
	// limit is how much of an event is held. A larger one is taken in pieces that are not whole.
	limit int
	take  func(event []byte, whole bool) error
	held  []byte
	// passing: the event under way is too large to be held.
	passing bool
}

func (s *splitter) Write(text []byte) (int, error) {
	s.held = append(s.held, text...)
	before := len(s.held)
	for end := endOfEvent(s.held); end >= 0; end = endOfEvent(s.held) {
		if err := s.take(s.held[:end], !s.passing); err != nil {
			return 0, err
		}
		s.held, s.passing = s.held[end:], false
	}
	if s.passing || len(s.held) > s.limit {
		s.passing = true
		// The end of the event may lie between this and what comes.
		cut := max(0, len(s.held)-3)
		if err := s.take(s.held[:cut], false); err != nil {
			return 0, err
		}
		s.held = s.held[cut:]
	}
	if len(s.held) < before { // else it would be copied for every piece of a large event
		s.held = bytes.Clone(s.held)
	}
	return len(text), nil
}

// Close takes an event that has no end.
func (s *splitter) Close() error {
	held := s.held
	s.held = nil
	return s.take(held, !s.passing)
}

// endOfEvent is where the first event ends, after its empty line; -1 where it has no end yet.
func endOfEvent(text []byte) int {
	for at := 0; ; {
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
