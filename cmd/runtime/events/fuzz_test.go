package events_test

import (
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/events"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// The method Add records or refuses any body. It never responds with an internal error.
func FuzzAdd(f *testing.F) {
	for _, seed := range []string{
		`{"action":"message","args":{"content":"hello","image_urls":["data:image/png;base64,AA=="]}}`,
		`{"action":"change_agent_state","args":{"agent_state":"user_confirmed"}}`,
		`{"action":"message","args":{"content":5}}`, `{"action":"run"}`, `{"args":null}`, `[]`, `null`, `{`, ``, "\x00",
	} {
		f.Add(seed)
	}
	j, err := journal.Open(filepath.Join(f.TempDir(), "events.jsonl"), strings.ToLower)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = j.Close() })
	f.Fuzz(func(t *testing.T, body string) {
		takes := &taker{journal: j}
		server := &events.Server{Journal: j, Driver: takes}
		before := j.Len()
		answer := httptest.NewRecorder()
		server.Add(answer, httptest.NewRequest("POST", "/events", strings.NewReader(body)))
		recorded := j.Len() - before + len(takes.states)
		if taken := answer.Code == 200; answer.Code >= 500 || taken != (recorded == 1) {
			t.Errorf("%q gets %d, and %d events are recorded", body, answer.Code, recorded)
		}
	})
}
