package journal_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// Open either rejects a file and leaves it unchanged, or returns a journal with the file's events
// in the same order. Events can then be appended, even after a restart.
func FuzzOpen(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "{", "{}\n", "null\n", "\x00\x00",
		`{"id":0,"source":"user","action":"message","args":{"content":"one"}}` + "\n",
		`{"id":0,"source":"user"}` + "\n" + `{"id":1,"source":"agent","message":"tw`,
		`{"id":0}` + "\n" + `{"id":2}` + "\n",
		`{"id":0}` + "\n" + "garbage\n" + `{"id":1}` + "\n",
		`{"id":0,"message":5}` + "\n", `{"id":0,"content":{}}` + "\n", `{"id":0,"args":[]}` + "\n" + `{"id":1}` + "\n",
		`{"id":0,"id":1}` + "\n", `{"ID":0}` + "\r\n", `{"id":0.0}` + "\n", `{"id":0}{"id":1}` + "\n",
		`{"id":0,"extras":{"agent_state":{"deep":[1,2]}},"cause":"x"}` + "\n",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "events.jsonl")
	f.Fuzz(func(t *testing.T, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := journal.Open(path, func(text string) string { return text })
		if err != nil {
			if left, _ := os.ReadFile(path); !bytes.Equal(left, content) {
				t.Errorf("it was rejected (%v), but changed from %q to %q", err, content, left)
			}
			return
		}
		defer func() { _ = j.Close() }()
		whole := j.Len()
		kept, err := j.Lines(0, whole)
		if err != nil {
			t.Fatalf("%q was opened, but cannot be read: %v", content, err)
		}
		offset := 0
		for id, line := range kept {
			var head struct {
				ID *int `json:"id"`
			}
			if json.Unmarshal(line, &head) != nil || head.ID == nil || *head.ID != id || !bytes.HasPrefix(content[offset:],
				append(bytes.Clone(line), '\n')) {
				t.Fatalf("for %q, event %d is %s", content, id, line)
			}
			offset += len(line) + 1
		}
		// Open may remove only the last line, and only if that line is incomplete or not an event.
		if rest := content[offset:]; bytes.Count(bytes.TrimSuffix(rest, []byte("\n")), []byte("\n")) > 0 {
			t.Errorf("for %q, more than the last line was removed: %q", content, rest)
		}
		texts(t, j, 0)
		if got := appendAll(t, j, message("more"))[0]; got.ID != whole {
			t.Errorf("after %d events the next one is %d", whole, got.ID)
		}
		_ = j.Close()
		again := open(t, path)
		defer func() { _ = again.Close() }()
		if all := texts(t, again, 0); len(all) != whole+1 {
			t.Errorf("after %q and one more there are %d events", content, len(all))
		}
	})
}
