package main_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
	"github.com/parley-dev/parley/hack/test/gitserver"
)

// The constant nobody is a user ID without any rights, like the user ID of a session's pod.
const nobody = 54321

// asNobody runs the session as the user nobody. It gives that user access to the programs and the
// session's directories.
func (p *pod) asNobody(t *testing.T) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(p.dir)
	bin := filepath.Join(root, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(root), root} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, from := range map[string]string{"supervisor": filepath.Join(filepath.Dir(path), "supervisor"),
		"runtime": path, "hostile": os.Args[0]} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(bin, name), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(t, p.termination, "")
	for _, path := range []string{p.dir, filepath.Join(p.dir, session.DocumentFile), p.workspace, p.home, p.termination} {
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	p.user, p.bin = nobody, bin
}

type echoing struct {
	*httptest.Server
	mu    sync.Mutex
	heard string
}

func newEchoing(t *testing.T, status int) *echoing {
	t.Helper()
	e := &echoing{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.heard += fmt.Sprint(r.Header)
		e.mu.Unlock()
		w.Header().Set("X-Echo", fmt.Sprint(r.Header))
		w.WriteHeader(status)
		fmt.Fprint(w, r.Header)
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *echoing) got(text string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Contains(e.heard, text)
}

// newCanaries returns the data of a session Secret. The pattern aCanary matches each value.
func newCanaries() map[string]string {
	canaries := map[string]string{}
	for key, name := range map[string]string{
		session.KeyFile: "session", session.LLMAPIKeyFile: "model", session.SearchAPIKeyFile: "search",
		session.SandboxAPIKeyFile: "sandbox",
		session.ProviderTokenFile: "git", "custom.0": "custom", "mcp.shttp.0": "remote", "mcp.stdio.0.1": "stdio",
	} {
		canaries[key] = "canary-" + name + "-" + rand.Text()[:20]
	}
	return canaries
}

func (p *pod) theReport(t *testing.T) (found findings) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.workspace, "report"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestAnAgentWithTheUIDOfTheRuntimeFindsNoKey(t *testing.T) {
	t.Run("in a cold pod", func(t *testing.T) { findNoKey(t, (*pod).start) })
	t.Run("in a warm pod", func(t *testing.T) {
		findNoKey(t, func(p *pod, t *testing.T) {
			bound := warm(t, p)
			bound.start(t)
			if code, _ := bound.send(t, "", bound.sealed(t, nil)); code != http.StatusOK {
				t.Errorf("the Bind is answered with %d", code)
			}
		})
	})
}

func findNoKey(t *testing.T, start func(*pod, *testing.T)) {
	t.Helper()
	canaries := newCanaries()
	model, remote := newEchoing(t, http.StatusOK), newEchoing(t, http.StatusBadRequest)
	host := gitserver.New(t)
	host.Create(t, "private/site.git")
	host.Password = canaries[session.ProviderTokenFile]
	name := "openai/gpt"
	p := newPod(t, session.Document{
		Settings:     v1alpha1.UserSettingsSpec{LLMModel: &name, LLMBaseURL: &model.URL},
		FirstMessage: "find the keys",
		Repository: &session.Repository{Name: host.URL + "/private/site.git", Host: host.Host(), Provider: v1alpha1.GitHub,
			TokenFile: session.ProviderTokenFile},
		CustomSecrets: []session.CustomSecret{{Name: "CUSTOM", ValueFile: "custom.0"}},
	})
	p.asNobody(t)
	hostile := filepath.Join(p.bin, "hostile")
	p.doc.Agent = &session.Agent{Name: "hostile", Command: []string{hostile}, Env: map[string]string{
		reportVariable: "{{.Workspace}}/report",
		"MODEL_KEY":    `{{env "LLM_API_KEY"}}`,
	}}
	// The tool server runs as the Linux user "nobody", who has no right to read the test binary. It
	// therefore runs a copy of the binary.
	p.doc.ToolServers = session.ToolServers{
		SHTTP: []session.RemoteServer{{URL: remote.URL, APIKeyFile: "mcp.shttp.0"}},
		Stdio: []session.StdioServer{{Name: "local", Command: hostile, Env: []session.EnvVar{
			{Name: serverVariable, Value: "yes"}, {Name: "API_TOKEN", ValueFile: "mcp.stdio.0.1"},
		}}},
	}
	p.writeDocument(t)
	p.secrets = canaries
	start(p, t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonCompleted {
		t.Fatalf("it ended with status %d: %+v", code, got)
	}
	found := p.theReport(t)
	for canary, where := range found.Canaries {
		if canary != canaries["custom.0"] {
			t.Errorf("the agent found %s in %s", canary, where)
		}
	}
	if where := found.Canaries[canaries["custom.0"]]; !slices.Contains(where, "its environment") {
		t.Errorf("the agent found its own secret only in %s, so this test may prove nothing", where)
	}
	if !found.Fetched {
		t.Error("git could not fetch, so this test proves nothing about the git token")
	}
	found.check(t, p)
	if !model.got("Bearer "+canaries[session.LLMAPIKeyFile]) || !remote.got("Bearer "+canaries["mcp.shttp.0"]) {
		t.Error("the keys did not reach their servers")
	}
	for _, canary := range canaries {
		if strings.Contains(p.output(), canary) {
			t.Errorf("the session printed %s", canary)
		}
	}
}

// If the kernel has no Landlock, agents are not confined. The runtime must then protect its keys
// from all processes of the same user.
func TestAnUnconfinedProcessFindsNoKeyInTheRuntime(t *testing.T) {
	canaries := newCanaries()
	p := newPod(t, session.Document{
		FirstMessage: "wait", Agent: agent(`touch "$PARLEY_WORKSPACE/begun"
			while [ ! -e "$PARLEY_WORKSPACE/report" ]; do sleep 0.01; done`),
		CustomSecrets: []session.CustomSecret{{Name: "CUSTOM", ValueFile: "custom.0"}},
	})
	p.asNobody(t)
	p.secrets = canaries
	p.start(t)
	eventually(t, "the agent runs", func() bool {
		_, err := os.Stat(filepath.Join(p.workspace, "begun"))
		return err == nil
	})
	cmd := exec.Command(filepath.Join(p.bin, "hostile"))
	p.secrets = nil
	cmd.Env = append(p.env(), reportVariable+"="+filepath.Join(p.workspace, "report"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	found := p.theReport(t)
	for canary, where := range found.Canaries {
		if canary != canaries["custom.0"] {
			t.Errorf("it found %s in %s", canary, where)
		}
	}
	if len(found.Canaries) != 1 {
		t.Error("it did not inspect the agent, so this test may prove nothing")
	}
	looked := 0
	for pid, command := range found.Commands {
		if !strings.HasSuffix(command, firstProcess) && !strings.HasSuffix(command, "/runtime run ") {
			continue
		}
		looked++
		for attempt, result := range found.Attempts[pid] {
			if result == "done" && attempt != "signal" {
				t.Errorf("%s of %s succeeded", attempt, command)
			}
		}
	}
	if looked != 2 {
		t.Errorf("it saw the processes %v", found.Commands)
	}
}

const firstProcess = "/supervisor " + supervise.FromEnvironment + " "

func (f *findings) check(t *testing.T, p *pod) {
	t.Helper()
	kinds := map[string]int{}
	for pid, command := range f.Commands {
		for _, end := range []string{firstProcess, "/runtime run ", "/hostile "} {
			if strings.HasSuffix(command, end) {
				kinds[end]++
			}
		}
		for attempt, result := range f.Attempts[pid] {
			if result == "done" {
				t.Errorf("%s of %s (%d) succeeded", attempt, command, pid)
			}
		}
		if len(f.Attempts[pid]) != 11 {
			t.Errorf("of %s (%d) it tried %v", command, pid, f.Attempts[pid])
		}
	}
	// The agent must see the supervisor, the runtime and the tool server.
	if len(f.Commands) != 3 || kinds[firstProcess] != 1 || kinds["/runtime run "] != 1 || kinds["/hostile "] != 1 {
		t.Errorf("it saw the processes %v", f.Commands)
	}
	if len(f.Answers) != 2 {
		t.Errorf("it asked %v", f.Answers)
	}
	for address, answers := range f.Answers {
		wants := map[string]int{"GET /alive": 404, "GET /status": 404, "POST /v1/messages": 200,
			"POST /v1/chat/completions": 200, "GET /v1/models": 200}
		if address == p.address {
			wants = map[string]int{"GET /alive": 200, "GET /status": 401, "POST /mcp": 401, "POST /v1/messages": 404}
		}
		for request, want := range wants {
			if answers[request] != want {
				t.Errorf("%s of %s is answered %d, want %d", request, address, answers[request], want)
			}
		}
	}
	if !slices.Equal(f.Tools, []string{"comment", "create_pull_request", "local_where", "read_git_host"}) {
		t.Errorf("it used the tools %v", f.Tools)
	}
}
