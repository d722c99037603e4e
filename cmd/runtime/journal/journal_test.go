package journal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

func open(t *testing.T, path string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(path, strings.NewReplacer("hunter2", "***", "running", "***").Replace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func appendAll(t *testing.T, j *journal.Journal, events ...session.Event) []session.Event {
	t.Helper()
	written, err := j.Append(events...)
	if err != nil {
		t.Fatal(err)
	}
	return written
}

func texts(t *testing.T, j *journal.Journal, from int) []string {
	t.Helper()
	var got []string
	err := j.Events(from, func(e *session.Event) bool {
		got = append(got, fmt.Sprintf("%d %s", e.ID, e.Text()))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func message(text string) session.Event { return session.UserMessage(text, nil) }

func TestEventsSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	j := open(t, path)
	appendAll(t, j, message("one"), message("two"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = open(t, path)
	if got := appendAll(t, j, message("three"))[0]; got.ID != 2 || got.Timestamp == "" {
		t.Errorf("the third event is %+v", got)
	}
	if got := strings.Join(texts(t, j, 1), ", "); got != "1 two, 2 three" {
		t.Errorf("the events from 1 on are %s", got)
	}
}

// The file is cut at each position of the last line.
func TestATornLastLineIsRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	j := open(t, path)
	appendAll(t, j, message("one"), message("two"))
	_ = j.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := strings.Index(string(whole), "\n") + 1
	for length := first; length < len(whole); length++ {
		if err := os.WriteFile(path, whole[:length], 0o600); err != nil {
			t.Fatal(err)
		}
		torn := open(t, path)
		appendAll(t, torn, message("again"))
		if got := strings.Join(texts(t, torn, 0), ", "); got != "0 one, 1 again" {
			t.Fatalf("cut at %d, the events are %s", length, got)
		}
		_ = torn.Close()
	}
}

func TestZerosAtTheEndOfTheJournalAreRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	j := open(t, path)
	appendAll(t, j, message("one"))
	_ = j.Close()
	whole, _ := os.ReadFile(path)
	if err := os.WriteFile(path, append(whole, make([]byte, 300)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := texts(t, open(t, path), 0); len(got) != 1 {
		t.Errorf("the events are %v", got)
	}
}

func TestDamageInTheMiddleIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(path, []byte("{\"id\":0}\n{\"id\":7}\n{\"id\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(path, strings.ToLower); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v", err)
	}
}

func TestSecretsAreMaskedBeforeTheyAreWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	j := open(t, path)
	event := session.StateChange(session.StateRunning, "hunter2")
	event.ToolCall, event.Meta = &session.ToolCall{ID: "hunter2", Function: "hunter2"},
		&session.EventMeta{Session: "hunter2"}
	event.Message, event.Args = "hunter2", map[string]any{
		"command": "echo hunter2", "hunter2": 1, "list": []any{"hunter2", map[string]any{"deep": "xhunter2x"}},
		"raw": json.RawMessage(`{"a":"hunter2"}`),
		"update": json.RawMessage(`{"agent_state":"hunter2",` +
			`"list":[{"confirmation_state":{"hunter2":"hunter2"}}]}`),
		"confirmation_state": map[string]any{"hunter2": "hunter2"},
	}
	appendAll(t, j, event)
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("on the disk is %s, %v", text, err)
	}
	// The name of the state is equal to one of the secrets, but the state stays readable.
	if err := j.Events(0, func(e *session.Event) bool {
		if e.StateOf() != session.StateRunning {
			t.Errorf("the state is %q", e.StateOf())
		}
		return true
	}); err != nil {
		t.Error(err)
	}
}

func TestAReaderFollowsConcurrentWrites(t *testing.T) {
	const writers, each = 4, 25
	j := open(t, filepath.Join(t.TempDir(), "events.jsonl"))
	var group sync.WaitGroup
	for range writers {
		group.Go(func() {
			for range each {
				if _, err := j.Append(message("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for read := 0; read < writers*each; {
		select {
		case <-j.More(read):
		case <-time.After(20 * time.Second):
			t.Fatal("nothing more is written")
		}
		lines, err := j.Lines(read, j.Len())
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if event, err := session.ParseEvent(line); err != nil || event.ID != read {
				t.Fatalf("event %d is %s, %v", read, line, err)
			}
			read++
		}
	}
	group.Wait()
}

func TestOnlyOneAttemptCanOpenTheJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	first := open(t, path)
	if _, err := journal.Open(path, strings.ToLower); err == nil || !strings.Contains(err.Error(), "another attempt") {
		t.Errorf("got %v", err)
	}
	_ = first.Close()
	open(t, path)
}

func TestAClosedJournalRejectsEvents(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "events.jsonl"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(message("one")); err == nil || j.Len() != 0 {
		t.Errorf("it accepted an event: %v", err)
	}
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte("{\"id\":0}\n{\"id\":1}\n"))
	f.Add([]byte("{\"id\":0}\n{\"id\":1"))
	f.Add([]byte("\n\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "events.jsonl")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := journal.Open(path, strings.ToLower)
		if err != nil {
			return // damage is reported
		}
		before := j.Len()
		if written, err := j.Append(message("next")); err != nil || written[0].ID != before {
			t.Errorf("got %+v, %v", written, err)
		}
		_ = j.Close()
		if after, err := journal.Open(path, strings.ToLower); err != nil || after.Len() != before+1 {
			t.Errorf("opened again: %v", err)
		}
	})
}

func TestADownloadedJournalGetsItsName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, path := filepath.Join(dir, "downloaded"), filepath.Join(dir, "events.jsonl")
	whole := open(t, file)
	appendAll(t, whole, message("one"))
	if err := whole.Close(); err != nil {
		t.Fatal(err)
	}
	j, err := journal.OpenDownloaded(file, path, strings.ToLower)
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, j, message("two"))
	if text, err := os.ReadFile(path); err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("when Append returns, the journal is %q, %v", text, err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the journal has its old name, too: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if after := open(t, path); after.Len() != 2 {
		t.Errorf("the journal has %d events, want 2", after.Len())
	}
}

func TestAJournalThatCannotGetItsNameRefusesEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := journal.OpenDownloaded(filepath.Join(dir, "downloaded"), filepath.Join(dir, "missing", "events.jsonl"),
		strings.ToLower)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for range 2 {
		if _, err := j.Append(message("one")); err == nil || j.Len() != 0 {
			t.Errorf("the journal has %d events, %v", j.Len(), err)
		}
	}
}
