package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func viewing(path string) scriptedmodel.Call {
	return editor(map[string]any{"command": "view", "path": path})
}

func TestTheModelGetsTheInstructionsOfEachDirectoryThatItUses(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, calls(bash("true"), viewing("sub/f.txt"), viewing("sub/f.txt")), calls(bash("cat sub/deep/f.txt")),
			calls(bash("cd other && ls"), bash("cat ../sub/f.txt")),
			calls(bash("ls ../.hidden ../node_modules ../sub")), says("Done."))
		for _, dir := range []string{"sub", "sub/deep", "other", "unused", ".hidden", "node_modules"} {
			s.write(t, dir+"/AGENTS.md", "Rules of "+dir+".")
			s.write(t, dir+"/CLAUDE.md", "Rules of "+dir+".")
			s.write(t, dir+"/f.txt", "text")
		}
		s.launch(t, []string{"--model", model}).mustOpen().mustPrompt("Work on node_modules.")
		for i, want := range [][]string{{}, {"sub"}, {"sub", "sub/deep"}, {"sub", "sub/deep", "other"},
			{"sub", "sub/deep", "other"}} {
			text := s.model.Requests()[i].Said()
			if got := strings.Count(text, "Rules of "); got != len(want) {
				t.Errorf("request %d has %d instructions: %q", i, got, text)
			}
			for _, dir := range want {
				if !strings.Contains(text, "Rules of "+dir+".") {
					t.Errorf("request %d lacks the instructions of %s", i, dir)
				}
			}
		}
	})
}

func TestInstructionsOfOtherRepositoriesAreIgnored(t *testing.T) {
	t.Parallel()
	s := newFixture(t, calls(bash("git init -q sub/clone && cat sub/clone/deep/f.txt"), viewing("worktree/f.txt"),
		viewing("sub/f.txt")), says("Done."))
	for _, dir := range []string{"sub", "sub/clone", "sub/clone/deep", "worktree"} {
		s.write(t, dir+"/AGENTS.md", "Rules of "+dir+".")
		s.write(t, dir+"/f.txt", "text")
	}
	s.write(t, ".git/HEAD", "ref: refs/heads/main")
	s.write(t, "worktree/.git", "gitdir: elsewhere")
	s.launch(t, []string{"--model", "openai/scripted"}).mustOpen().mustPrompt("work")
	if text := s.model.Requests()[1].Said(); strings.Count(text, "Rules of ") != 1 ||
		!strings.Contains(text, "Rules of sub.") {
		t.Errorf("the model gets %q", text)
	}
}

func TestInstructionsFitIntoASmallContextWindow(t *testing.T) {
	t.Parallel()
	s := newFixture(t, says("One."), says("Two."))
	s.write(t, "AGENTS.md", "Begin.\n"+strings.Repeat("Be careful.\n", 1300)+"End.")
	c := s.launch(t, []string{"--model", "openai/scripted", "--context-window", "16000"}).mustOpen()
	c.mustPrompt("work")
	c.mustPrompt("again")
	_, rules, _ := strings.Cut(s.model.Requests()[1].System, "The repository has instructions.")
	if len(rules) > 16000/8*3+1000 || !strings.Contains(rules, "Begin.") || !strings.Contains(rules, "End.") {
		t.Errorf("the model gets instructions of %d characters", len(rules))
	}
	if n := len(c.find(acp.MetaNotice, "the model's context has room for only 5 KiB of them")); n != 1 {
		t.Errorf("the user was told %d times: %s", n, c.received())
	}
}

func TestMicroagentsAreTriggeredAsInOpenHands(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	s.write(t, ".openhands/microagents/README.md", "About this directory.")
	s.write(t, ".openhands/microagents/repo.md", "Always lint.")
	s.write(t, ".openhands/microagents/team/deploy.md",
		"---\nname: deploy\ntype: knowledge\nversion: 1.0\ntriggers:\n- Deploy\n- \"\"\n---\n\nDeploy on Mondays.\n")
	s.write(t, ".openhands/microagents/task.md", "---\nname: release\ntype: task\ninputs:\n- name: TAG\n  "+
		"description: the tag\n---\nRelease ${TAG}.")
	c := s.launch(t, []string{"--model", "openai/scripted"}).mustOpen()
	system := func(n int) string { return s.model.Requests()[n].System }
	added := &acp.Content{Type: "text", Text: "The host is deploy.example.com.", Meta: acp.Meta{acp.MetaContext: true}}
	if _, err := c.promptWith(nil, *added, *acp.Text("hello"))(); err != nil {
		t.Fatal(err)
	}
	c.mustPrompt("Start the REDEPLOYMENT.")
	c.mustPrompt("Please /release it.")
	for i, want := range []string{"", "Deploy on Mondays.", "Deploy on Mondays. Release ${TAG}."} {
		text := s.model.Requests()[i].Said()
		for _, rule := range []string{"Deploy on Mondays.", "Release ${TAG}."} {
			if strings.Contains(text, rule) != strings.Contains(want, rule) || strings.Count(text, rule) > 1 {
				t.Errorf("message %d: the messages are %q", i, text)
			}
		}
		if strings.Count(system(i), "Always lint.") != 1 || strings.Contains(system(i), "About this") {
			t.Errorf("the system prompt is %q", system(i))
		}
	}
}

func TestHostileInstructionsAreIgnoredWithANotice(t *testing.T) {
	t.Parallel()
	dirs := []string{"link", "pipe", "huge", "more0", "more1", "more2"}
	list := calls(bash("ls " + strings.Join(dirs, " ")))
	s := newFixture(t, list, list, says("Done."))
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("a secret outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		s.write(t, dir+"/AGENTS.md", fmt.Sprintf("Rules of %s. %s", dir, strings.Repeat("Be careful. ", 1300)))
	}
	s.write(t, "huge/AGENTS.md", "Begin.\n"+strings.Repeat("Be careful.\n", 1<<20))
	for _, path := range []string{"link/AGENTS.md", "CLAUDE.md"} {
		_ = os.Remove(filepath.Join(s.dir, path))
		if err := os.Symlink(outside, filepath.Join(s.dir, path)); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Remove(filepath.Join(s.dir, "pipe/AGENTS.md"))
	if err := syscall.Mkfifo(filepath.Join(s.dir, "pipe/AGENTS.md"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.write(t, ".openhands/microagents/bomb.md", "---\na: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\n"+
		"triggers: {*b : 1}\n---\nNever seen.")
	c := s.launch(t, []string{"--model", "openai/scripted", "--context-window", "100000"}).mustOpen()
	c.mustPrompt("work")
	requests := s.model.Requests()
	last := requests[len(requests)-1]
	for _, words := range []string{"a secret outside", "Never seen."} {
		if last.Contains(words) {
			t.Errorf("the model gets %q", words)
		}
	}
	if !last.Contains("Begin.") || len(last.Said()) > 50_000 {
		t.Errorf("the model gets %d bytes", len(last.Said()))
	}
	for _, words := range []string{"CLAUDE.md is ignored: it cannot be read, or is a link", "bomb.md is ignored",
		"link/AGENTS.md is ignored", "pipe/AGENTS.md is ignored: it is not a file", "huge/AGENTS.md has more than 16 KiB",
		"The model does not get more1/AGENTS.md"} {
		if n := len(c.find(acp.MetaNotice, words)); n != 1 {
			t.Errorf("%d notices say %q", n, words)
		}
	}
}
