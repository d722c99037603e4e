package launch_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/launch"
	"github.com/parley-dev/parley/cmd/runtime/process"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

var store = secrets.New(map[string]string{
	session.LLMAPIKeyFile: "sk-llm-0123456789\n", session.SearchAPIKeyFile: "search-0123456789",
	session.SandboxAPIKeyFile: "sandbox-0123456789",
	session.ProviderTokenFile: "ghp_0123456789", session.KeyFile: "session-0123456789", "custom.0": " keep spaces\n",
})

const grace = 15 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == process.ConfineCommand {
		fmt.Fprintln(os.Stderr, process.Become(os.Args[2], os.Args[3:]))
		os.Exit(126)
	}
	process.Confiner = filepath.Base(os.Args[0])
	os.Exit(m.Run())
}

func start(t *testing.T, script string, adjust ...func(*session.Agent, *session.AgentInput)) (*process.Child,
	*bytes.Buffer, string) {
	t.Helper()
	dir := t.TempDir()
	message := filepath.Join(t.TempDir(), "message.md")
	if err := os.WriteFile(message, []byte("do it\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	entry := &session.Agent{Name: "test", Command: []string{"/bin/sh", "-c", script}}
	input := session.AgentInput{MessageFile: message, Model: "a/b", MaxIterations: 7, MaxBudget: "4.50",
		RouterURL: "http://127.0.0.1/mcp", Workspace: dir}
	for _, a := range adjust {
		a(entry, &input)
	}
	doc := &session.Document{
		Conversation:  "c",
		Settings:      v1alpha1.UserSettingsSpec{ExposeGitTokenToAgent: new(true)},
		Repository:    &session.Repository{Name: "a/b", Provider: v1alpha1.GitLab, TokenFile: session.ProviderTokenFile},
		CustomSecrets: []session.CustomSecret{{Name: "MINE", ValueFile: "custom.0"}},
	}
	var out bytes.Buffer
	env := launch.Environment([]string{"PATH=" + os.Getenv("PATH"), "LLM_MODEL=other"}, doc, store, input)
	running, err := launch.Start(entry, input, env, dir, store.Output(&out).Lines(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { running.Stop(grace) })
	return running, &out, dir
}

func TestAnAgentWithExitStatusZeroSucceeded(t *testing.T) {
	running, out, dir := start(t, `cat; pwd; echo work > file`)
	if got := running.Failure(); got != "" {
		t.Errorf("it failed: %s", got)
	}
	if got := out.String(); got != "do it\n"+dir+"\n" {
		t.Errorf("it printed %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		t.Error(err)
	}
}

func TestTheErrorOfAnAgentContainsItsExitStatusOrSignal(t *testing.T) {
	for script, want := range map[string]string{
		"echo a reason; exit 3": "exited with status 3",
		"kill -9 $$":            "was terminated by signal 9 (killed)",
	} {
		running, _, _ := start(t, script)
		if got := running.Failure(); got != want {
			t.Errorf("%s: got %q", script, got)
		}
	}
}

func TestTheErrorOfAFailedStartContainsTheReason(t *testing.T) {
	input := session.AgentInput{MessageFile: os.DevNull}
	for name, c := range map[string]struct {
		command []string
		says    string
	}{
		"no program":     {[]string{"no-such-agent"}, "cannot be started"},
		"no command":     {[]string{"{{.ReplayFile}}"}, "empty"},
		"a bad template": {[]string{"sh", "{{.Nothing}}"}, "command[1]"},
	} {
		_, err := launch.Start(&session.Agent{Name: "test", Command: c.command}, input, nil, t.TempDir(),
			store.Output(&bytes.Buffer{}).Lines(""))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAnAgentGetsItsEnvironment(t *testing.T) {
	running, _, dir := start(t, `env > env; printf %s "$MINE" > mine`, func(entry *session.Agent, _ *session.AgentInput) {
		entry.Env = map[string]string{"OPENAI_API_KEY": `{{env "LLM_API_KEY"}}`, "TURNS": "{{.MaxIterations}}"}
	})
	if got := running.Failure(); got != "" {
		t.Fatalf("it failed: %s", got)
	}
	text, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	got := "\n" + string(text)
	for _, want := range []string{
		"LLM_MODEL=a/b", "LLM_API_KEY=" + session.PlaceholderKey,
		"GITLAB_TOKEN=ghp_0123456789", "PARLEY_MAX_ITERATIONS=7", "PARLEY_MAX_BUDGET=4.50",
		"PARLEY_MCP_URL=http://127.0.0.1/mcp", "PARLEY_CONVERSATION=c", "OPENAI_API_KEY=" + session.PlaceholderKey, "TURNS=7",
	} {
		if !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("%s is missing", want)
		}
	}
	for _, unwanted := range []string{"GITHUB_TOKEN=", "SEARCH_API_KEY=", "SANDBOX_API_KEY=", "PARLEY_SESSION_KEY=",
		"NO_PROXY=", "LLM_BASE_URL=", "PARLEY_REPLAY_FILE=", "LLM_MODEL=other"} {
		if strings.Contains(got, "\n"+unwanted) {
			t.Errorf("%s is set", unwanted)
		}
	}
	if mine, err := os.ReadFile(filepath.Join(dir, "mine")); err != nil || string(mine) != " keep spaces\n" {
		t.Errorf("the custom secret is %q, %v", mine, err)
	}
}

func TestTheLoopbackAddressBypassesProxies(t *testing.T) {
	for name, c := range map[string]struct {
		own  []string
		want string
	}{
		"a proxy": {[]string{"HTTP_PROXY=http://proxy"}, "127.0.0.1,localhost"},
		"variables in lower case": {[]string{"http_proxy=http://proxy", "NO_PROXY=a", "no_proxy=.example.com"},
			".example.com,127.0.0.1,localhost"},
		"an exception without a proxy": {[]string{"no_proxy=a"}, "a"},
		"no proxy":                     {nil, ""},
		"a proxy for HTTPS only":       {[]string{"HTTPS_PROXY=http://proxy"}, ""},
	} {
		got := ""
		for _, variable := range launch.Environment(c.own, &session.Document{}, store, session.AgentInput{}) {
			if value, found := strings.CutPrefix(variable, "no_proxy="); found {
				got = value
			}
		}
		if got != c.want {
			t.Errorf("%s: no_proxy is %q, want %q", name, got, c.want)
		}
	}
}

func TestSecretsAreMaskedInAnAgentsOutput(t *testing.T) {
	running, out, _ := start(t, `
		echo "key sk-llm-0123456789"
		printf 'in two sk-llm-01'; printf '23456789 parts\n' >&2
		printf %s sk-llm-0123456789 | base64
		printf 'no end %s' "$GITLAB_TOKEN"`)
	if got := running.Failure(); got != "" {
		t.Fatalf("it failed: %s", got)
	}
	if got := out.String(); got != "key ***\nin two *** parts\n***\nno end ***\n" {
		t.Errorf("it printed %q", got)
	}
}

func TestStopEndsAnAgentAndItsChildren(t *testing.T) {
	running, _, dir := start(t, `trap 'echo asked > asked; exit 0' TERM; sleep 1000 & echo $! > pid; mv pid child; wait`)
	var child []byte
	eventually(t, "it has a child", func() (err error) {
		child, err = os.ReadFile(filepath.Join(dir, "child"))
		return err
	})
	running.Stop(grace)
	if _, err := os.Stat(filepath.Join(dir, "asked")); err != nil {
		t.Error("it was not asked to end")
	}
	eventually(t, "its child is gone", func() error {
		// Nothing reaps the orphan in this test, so it may remain as a zombie.
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			return errors.New(string(stat))
		}
		return nil
	})
}

func eventually(t *testing.T, condition string, problem func() error) {
	t.Helper()
	err := problem()
	for deadline := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(deadline); err = problem() {
		<-time.After(time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%s: %v", condition, err)
	}
}
