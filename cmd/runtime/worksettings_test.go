package main_test

import (
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// recording is the JSON of a recorded session without its closing bracket, so that tests can append
// events. The recorded result of the first action differs from its result in a replay.
const recording = `[
	{"source":"environment","observation":"agent_state_changed","content":"","extras":{"agent_state":"running"}},
	{"source":"user","action":"message","args":{"content":"Make it."}},
	{"source":"agent","action":"run","args":{"command":"echo one >> log; cat log","thought":"I begin."}},
	{"source":"agent","observation":"run","content":"what came of it then","extras":{"command":"echo one >> log; cat ` +
	`log"}},
	{"source":"agent","action":"edit","args":{"command":"create","path":"made","file_text":"a\n"}}`

func results(request *scriptedmodel.Request) (number int) {
	for _, turn := range request.Turns {
		number += len(turn.Results)
	}
	return number
}

// replayed starts a session with a recording, and waits for the end of its turn.
func replayed(t *testing.T, recording string, change func(*session.Document), steps ...scriptedmodel.Step) (*pod,
	*scriptedmodel.Server) {
	t.Helper()
	p, model := scripted(t, func(d *session.Document) {
		d.FirstMessage, d.Replay = "", true
		if change != nil {
			change(d)
		}
	}, steps...)
	dir := t.TempDir()
	write(t, filepath.Join(dir, session.ReplayFile), recording)
	p.image = append(p.image, "PARLEY_REPLAY_DIR="+dir)
	p.start(t)
	eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
	if violations := model.Violations(); len(violations) > 0 {
		t.Errorf("the model refused: %q", violations)
	}
	return p, model
}

func TestRecordedActionsAreExecutedAgainAndTheModelContinues(t *testing.T) {
	t.Parallel()
	p, model := replayed(t, recording+"]", nil, calls(bash("echo two >> log")), says("Now it is done."))
	if p.file("log") != "one\ntwo\n" || p.file("made") != "a\n" {
		t.Errorf("the files are %q and %q", p.file("log"), p.file("made"))
	}
	requests := model.Requests()
	if len(requests) != 2 {
		t.Fatalf("the model got %d requests", len(requests))
	}
	// The model receives the results of the repeated actions, not the recorded results.
	first := requests[0]
	if results(first) != 2 || !first.Contains("Make it.") || !first.Contains("I begin.") || !first.Contains("one") ||
		first.Contains("what came of it then") {
		t.Errorf("the model got %q", first.Said())
	}
	events := strings.Join(p.eventLines(t), "\n")
	for _, words := range []string{"agent run  Running command: echo one >> log; cat log", "agent edit",
		"agent message  Now it is done."} {
		if !strings.Contains(events, words) {
			t.Errorf("no event is %q:\n%s", words, events)
		}
	}
	if strings.Contains(events, "what came of it then") {
		t.Errorf("an old result is recorded as new:\n%s", events)
	}
}

func TestTheSessionWaitsIfAReplayEndsWithAMessageOfTheAgent(t *testing.T) {
	t.Parallel()
	p, model := replayed(t, recording+`,{"source":"agent","action":"message","args":{"content":"It is made."}}]`, nil,
		says("Now it is done."))
	if n := len(model.Requests()); n != 0 || p.file("made") != "a\n" {
		t.Errorf("the model got %d requests, and made is %q", n, p.file("made"))
	}
	p.send(t, `{"action":"message","args":{"content":"And now?"}}`)
	eventually(t, "the answer", func() bool {
		return strings.Contains(strings.Join(p.eventLines(t), "\n"), "agent message  "+
			"Now it is done.")
	})
	requests := model.Requests()
	if len(requests) != 1 || results(requests[0]) != 2 || !requests[0].Contains("It is made.") ||
		!requests[0].Contains("And now?") {
		t.Errorf("the model got %d requests", len(requests))
	}
}

// The test makes Parley's agent behave like an agent that cannot replay: the agent starts without the
// flag --replay, and does not advertise the capability parley.dev/replays.
func TestAnAgentThatCannotReplayGetsTheRecordingAsText(t *testing.T) {
	t.Parallel()
	p, model := replayed(t, recording+"]", func(d *session.Document) {
		command := d.Agent.Command[:len(d.Agent.Command)-1]
		d.Agent.Command = []string{"sh", "-c", `"$@" | sed -u 's,"parley.dev/replays":true,"parley.dev/replays":false,'`,
			"sh"}
		d.Agent.Command = append(d.Agent.Command, command...)
	}, says("I go on."))
	if p.file("log") != "" {
		t.Errorf("a recorded command was run: %q", p.file("log"))
	}
	requests := model.Requests()
	if len(requests) != 1 || !requests[0].Contains("Make it.") || !requests[0].Contains("echo one >> log; cat log") ||
		!requests[0].Contains("what came of it then") {
		t.Errorf("the model got %q", requests[0].Said())
	}
}

// conflicting serves a repository over HTTP. Its branches main and feature changed the same line.
func conflicting(t *testing.T) (url, bare string) {
	t.Helper()
	root := t.TempDir()
	bare = filepath.Join(root, "site.git")
	git(t, root, `git init -q -b main work && cd work && echo base > text && git add . && git commit -q -m base &&
		git checkout -q -b feature && echo theirs > text && git commit -q -a -m theirs &&
		git checkout -q main && echo ours > text && git commit -q -a -m ours && cd .. && git clone -q --bare work site.git &&
		git -C site.git config http.receivepack true`)
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(git(t, root, "git --exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=somebody", "HOME=" + root},
	})
	t.Cleanup(server.Close)
	return server.URL + "/site.git", bare
}

// git runs a script without this machine's git configuration.
func git(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=T",
		"GIT_AUTHOR_EMAIL=t@example.com",
		"GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, output)
	}
	return strings.TrimSpace(string(output))
}

func TestAMergeConflictTaskClonesTheHistoryOfBothBranches(t *testing.T) {
	t.Parallel()
	for task, history := range map[v1alpha1.TaskType]bool{v1alpha1.MergeConflicts: true, v1alpha1.FailingChecks: false} {
		t.Run(string(task), func(t *testing.T) {
			t.Parallel()
			url, bare := conflicting(t)
			before := git(t, bare, "git rev-parse feature")
			p, model := scripted(t, func(d *session.Document) {
				d.Task, d.History = true, history
				d.FirstMessage = session.FirstMessage(&v1alpha1.ConversationSpec{SuggestedTask: &v1alpha1.SuggestedTask{
					GitProvider: v1alpha1.GitHub, TaskType: task, Repo: "acme/site", IssueNumber: 7, Title: "Two texts",
				}})
				d.Repository = &session.Repository{Name: url, Branch: "feature"}
				d.Settings.GitUserName, d.Settings.GitUserEmail = ptr.To("Ada"), ptr.To("ada@example.com")
			},
				calls(bash("git merge origin/main")),
				calls(bash("echo both > text && git commit -q -a -m merged && git push -q origin feature")), says("Done."),
			)
			p.start(t)
			eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
			requests := model.Requests()
			if !requests[0].Contains("#7") || !requests[0].Contains("acme/site") || !requests[0].Contains("Two texts") {
				t.Errorf("the model got %q", requests[0].Said())
			}
			conflict := requests[1].Contains("CONFLICT (content): Merge conflict in text")
			if conflict != history {
				t.Errorf("the result of the merge: %q", requests[1].Said())
			}
			if !history {
				return // a shallow clone of one branch has nothing to merge
			}
			if got := git(t, bare, "git log -1 --format='%an %s %P' feature"); got != "Ada merged "+before+" "+git(t, bare,
				"git rev-parse main") {
				t.Errorf("the branch is at %q", got)
			}
		})
	}
}
