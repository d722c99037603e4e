package loop

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/acp"
)

// The test counts three bytes as one token. Current tokenizers need at least four bytes of English
// text for a token, so the real number is lower.
func TestTheSystemPromptHasAtMost2500Tokens(t *testing.T) {
	environment := "- " + strings.Join(programs, ", ") + strings.Repeat("x", 3*maxName) + strings.Repeat(" word", 100)
	if size := len(systemPrompt("/workspace/repository", environment, "")) / 3; size > 2500 {
		t.Errorf("the prompt has about %d tokens", size)
	}
}

func TestTheModelIsToldTheStateOfTheRepository(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		command := exec.Command("git", args...)
		command.Dir = dir
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, output)
		}
	}
	day := time.Date(2026, 11, 17, 23, 0, 0, 0, time.UTC)
	if text := describeEnvironment(t.Context(), dir, day); strings.Contains(text, "repository") ||
		!strings.Contains(text, "17 November 2026") || !strings.Contains(text, "git") {
		t.Errorf("without a repository: %s", text)
	}
	run("init", "--initial-branch=topic")
	run("remote", "add", "origin", "https://user:token@git.example.com/team/project.git")
	if text := describeEnvironment(t.Context(), dir, day); !strings.Contains(text, "branch topic.") ||
		!strings.Contains(text, "changes: 0.") || strings.Contains(text, "token") ||
		!strings.Contains(text, "origin is git.example.com/team/project.") {
		t.Errorf("of a clean repository: %s", text)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := describeEnvironment(t.Context(), dir, day); !strings.Contains(text, "changes: 1.") {
		t.Errorf("of a changed repository: %s", text)
	}
}

func TestTheAddressOfARemoteIsShownWithoutCredentials(t *testing.T) {
	for remote, want := range map[string]string{
		"https://token@host.example/a/b.git": "host.example/a/b", "ssh://git@host.example:22/a/b": "host.example:22/a/b",
		"token@host.example:a/b.git": "host.example/a/b", "/a/path": "", "../path": "", "": "",
		"https://host.example/a?token=secret": "host.example/a", "https://host.example/a\x01\nb": "",
	} {
		if got := remoteName(remote); got != want {
			t.Errorf("%q: got %q, want %q", remote, got, want)
		}
	}
}

// If the beginning of the requests changed, the provider's cache would be useless.
func TestTheSystemPromptStaysTheSameOnTheNextDay(t *testing.T) {
	m := &script{steps: []any{says("One."), says("Two.")}}
	dir := t.TempDir()
	clock := &dayClock{now: time.Date(2026, 11, 17, 23, 59, 0, 0, time.UTC)}
	options := Options{Home: t.TempDir(), Model: m, Clock: clock}
	s, err := New(t.Context(), &client{}, options, acp.SessionParams{Cwd: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.prompt(t, "1", "go"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	clock.now = clock.now.Add(24 * time.Hour)
	if err := os.WriteFile(filepath.Join(dir, "AGENTS.md"), []byte("Another rule."), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err = Load(t.Context(), &client{}, options, acp.SessionParams{Cwd: dir, SessionID: s.ID()}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.prompt(t, "2", "go on"); err != nil {
		t.Fatal(err)
	}
	if first, second := m.requests[0].System, m.requests[1].System; first != second ||
		!strings.Contains(first, "17 November 2026") {
		t.Errorf("the prompt was\n%s\nand is\n%s", first, second)
	}
}

type dayClock struct {
	systemClock
	now time.Time
}

func (c *dayClock) Now() time.Time { return c.now }
