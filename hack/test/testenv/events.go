package testenv

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// Events reads events from a file with one event per line.
func Events(t testing.TB, path string) (events []session.Event) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var event session.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	return events
}
