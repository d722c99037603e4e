package modelproxy

import (
	"bytes"
	"encoding/json"
	"io"
)

// largestEvent is how much of an event is held back to see what it is. That with the usage is
// small.
const largestEvent = 64 << 10

// usageFilter takes the event out of a stream of chat completions that holds nothing but the usage.
// It is there because the proxy asked for it, and a client that did not may take the first choice
// of every event.
type usageFilter struct {
	out  io.Writer
	held []byte
	// passing: the event under way is too large to be held back.
	passing bool
}

func (f *usageFilter) Write(text []byte) (int, error) {
	f.held = append(f.held, text...)
	for {
		end := endOfEvent(f.held)
		if end < 0 {
			break
		}
		event := f.held[:end]
		if f.passing || !onlyUsage(event) {
			if _, err := f.out.Write(event); err != nil {
				return 0, err
			}
		}
		f.passing = false
		f.held = f.held[end:]
	}
	if f.passing || len(f.held) > largestEvent {
		f.passing = true
		// The end of the event may lie between this and what comes.
		cut := max(0, len(f.held)-3)
		if _, err := f.out.Write(f.held[:cut]); err != nil {
			return 0, err
		}
		f.held = f.held[cut:]
	}
	f.held = append([]byte(nil), f.held...)
	return len(text), nil
}

// Close writes an event that has no end.
func (f *usageFilter) Close() error {
	_, err := f.out.Write(f.held)
	f.held = nil
	return err
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
