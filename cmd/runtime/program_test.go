package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
)

func agent(script string) *session.Agent {
	return &session.Agent{Name: "test", Command: []string{"/bin/sh", "-c", script}}
}

func toolServers() session.ToolServers {
	return session.ToolServers{Stdio: []session.StdioServer{{Name: "local", Command: os.Args[0],
		Env: []session.EnvVar{{Name: serverVariable, Value: "yes"}}}}}
}

func TestASessionRunsFromItsStartToItsEnd(t *testing.T) {
	model := "provider/model"
	p := newPod(t, session.Document{
		Settings:     v1alpha1.UserSettingsSpec{LLMModel: &model},
		Repository:   &session.Repository{Name: repository(t), Branch: "feature"},
		ToolServers:  toolServers(),
		FirstMessage: "make a file", Instructions: "be brief",
		Agent: agent(
			`echo "working with $LLM_API_KEY and $MINE on {{.Model}}: $(cat {{.MessageFile}}), $(cat {{.InstructionsFile}})"
			pwd; cp feature made
			while [ ! -e "$PARLEY_WORKSPACE/go" ]; do sleep 0.01; done`),
		CustomSecrets: []session.CustomSecret{{Name: "MINE", ValueFile: "custom.0"}},
	})
	p.start(t)
	p.waitReady(t)
	clone := filepath.Join(p.workspace, "site")

	t.Run("the status needs the key", func(t *testing.T) {
		for _, header := range [][]string{nil, {"Authorization", "Bearer wrong"}, {"Authorization",
			secretValues[session.KeyFile]}, {"X-Session-API-Key", ""}} {
			if code, _ := p.get(t, session.StatusPath, header...); code != http.StatusUnauthorized {
				t.Errorf("with %q the answer is %d", header, code)
			}
		}
		if code, _ := p.get(t, session.StatusPath, "X-Session-API-Key",
			secretValues[session.KeyFile]); code != http.StatusOK {
			t.Errorf("with the key the answer is %d", code)
		}
	})
	t.Run("the status is complete", func(t *testing.T) {
		eventually(t, "the agent works", func() bool { return p.status(t).Agent.State == session.AgentRunning })
		got := p.status(t)
		if w := got.Workspace; w.State != session.WorkspacePrepared || w.Directory != clone || w.Branch != "feature" ||
			len(w.Commit) != 40 {
			t.Errorf("the workspace is %+v", w)
		}
		if len(got.ToolServers) != 1 || got.ToolServers[0].State != session.ToolServerConnected {
			t.Errorf("the tool servers are %+v", got.ToolServers)
		}
		if got.Agent != (session.AgentStatus{Name: "test", State: session.AgentRunning, Reported: session.StateRunning}) ||
			got.IdleSeconds != 0 || !got.Ready {
			t.Errorf("the status is %+v", got)
		}
	})
	t.Run("the tools are served", func(t *testing.T) {
		if _, err := p.connect(t, "wrong"); err == nil {
			t.Error("the tools need no key")
		}
		tools, err := p.connect(t, secretValues[session.KeyFile])
		if err != nil {
			t.Fatal(err)
		}
		result, err := tools.CallTool(t.Context(), &mcp.CallToolParams{Name: "local_where"})
		if err != nil {
			t.Fatal(err)
		}
		// The tool server runs in the clone and does not have the agent's secrets.
		if got, want := result.Content[0].(*mcp.TextContent).Text, fmt.Sprintf("%s %q", clone, ""); got != want {
			t.Errorf("the tool says %s, want %s", got, want)
		}
	})
	t.Run("no secret is on a command line", func(t *testing.T) {
		processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil || len(processes) == 0 {
			t.Fatalf("no process can be seen: %v", err)
		}
		for _, process := range processes {
			line, _ := os.ReadFile(process) // the process may have ended
			for _, value := range secretValues {
				if strings.Contains(string(line), value) {
					t.Errorf("the command line %s shows %s", line, value)
				}
			}
		}
	})

	write(t, filepath.Join(p.workspace, "go"), "")
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonCompleted {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
	if text, err := os.ReadFile(filepath.Join(clone, "made")); err != nil || string(text) != "two\n" {
		t.Errorf("the agent's work is %q, %v", text, err)
	}
	if want := "working with sk-parley-placeholder and *** on provider/model: make a file, be brief\n" + clone +
		"\n"; !strings.Contains(p.output(), want) {
		t.Errorf("it printed\n%s\nwant\n%s", p.output(), want)
	}
}

func TestAFailedSessionReportsItsReason(t *testing.T) {
	for name, c := range map[string]struct {
		doc  session.Document
		says string
	}{
		"no branch": {session.Document{Repository: &session.Repository{Name: repository(t), Branch: "none"}},
			`it has no branch "none"`},
		"no agent": {session.Document{FirstMessage: "go", Agent: &session.Agent{Name: "x",
			Command: []string{"no-such-agent"}}}, "the agent x cannot be started"},
		"an agent": {session.Document{FirstMessage: "go", Agent: agent("echo $MINE; exit 3")},
			"the agent test exited with status 3"},
		"a secret": {session.Document{Repository: &session.Repository{Name: "file:///" + secretValues["custom.0"]}},
			"file:///***"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, c.doc)
			p.start(t)
			if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonFailed || !strings.Contains(got.Message,
				c.says) {
				t.Errorf("it ended with status %d: %+v", code, got)
			}
			for _, value := range secretValues {
				if strings.Contains(p.output(), value) {
					t.Errorf("it printed %s", value)
				}
			}
		})
	}
}

func TestAnUnreachableHostEndsTheSessionBeforeItsDeadline(t *testing.T) {
	p := newPod(t, session.Document{
		StartDeadline: metav1.Duration{Duration: 12 * time.Second},
		Repository:    &session.Repository{Name: "http://127.0.0.1:1/acme/site"},
	})
	p.start(t)
	code, got := p.wait(t)
	if code != 0 || got.Reason != v1alpha1.ReasonFailed || !strings.Contains(got.Message,
		"127.0.0.1:1 cannot be reached") || !strings.Contains(got.Message, "retried for 9s") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

func TestASessionWithoutAnAgentEndsWhenItIsIdle(t *testing.T) {
	timeout := metav1.Duration{Duration: 10 * time.Second}
	p := newPod(t, session.Document{IdleTimeout: timeout, ToolServers: toolServers(), FirstMessage: "hello",
		Agent: &session.Agent{Name: "CodeActAgent"}})
	p.start(t)
	p.waitReady(t)
	if got := p.status(t); got.Agent.State != session.AgentNone || got.IdleTimeoutSeconds != 10 {
		t.Errorf("the status is %+v", got)
	}
	before := time.Now()
	// The client stays connected but sends nothing.
	if _, err := p.connect(t, secretValues[session.KeyFile]); err != nil {
		t.Fatal(err)
	}
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonIdle ||
		got.Message != "no activity for 10s" {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
	if idle := time.Since(before); idle < timeout.Duration {
		t.Errorf("it ended %s after a request", idle)
	}
}

func TestALongStartDoesNotCountAsIdleTime(t *testing.T) {
	servers := toolServers()
	arrival := filepath.Join(t.TempDir(), "go")
	servers.Stdio[0].Env = append(servers.Stdio[0].Env, session.EnvVar{Name: waitVariable, Value: arrival})
	p := newPod(t, session.Document{IdleTimeout: metav1.Duration{Duration: 5 * time.Second}, ToolServers: servers})
	p.start(t)
	eventually(t, "the start lasts longer than the session may be idle", func() bool {
		code, _ := p.get(t, session.AlivePath)
		return code == http.StatusOK && p.status(t).IdleSeconds > 5
	})
	write(t, arrival, "")
	p.waitReady(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonIdle {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

func TestVariablesThatContainASecretReachTheAgentUnchanged(t *testing.T) {
	p := newPod(t, session.Document{
		FirstMessage: "go", Agent: agent(`[ "$WHERE" = "/usr/bin:/bin" ] && env | grep -q ^PATH= && echo it has its ` +
			`variables`),
		CustomSecrets: []session.CustomSecret{{Name: "SHORT", ValueFile: "custom.1"}},
	})
	p.image = []string{"WHERE=/usr/bin:/bin"}
	p.secrets["custom.1"] = "/bin"
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonCompleted || !strings.Contains(p.output(),
		"it has its variables") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

func TestAPlainWordInAToolServersVariableIsNotMasked(t *testing.T) {
	servers := toolServers()
	servers.Stdio[0].Env = append(servers.Stdio[0].Env, session.EnvVar{Name: "NODE_ENV", ValueFile: "mcp.stdio.0.1"},
		session.EnvVar{Name: "API_TOKEN", ValueFile: "mcp.stdio.0.2"})
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(`echo "$NODE_ENV, hunter"`), ToolServers: servers})
	p.image = []string{"NODE_ENV=production"}
	p.secrets["mcp.stdio.0.1"] = "production"
	p.secrets["mcp.stdio.0.2"] = "hunter"
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonCompleted || !strings.Contains(p.output(),
		"production, ***\n") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

func TestAnAgentWithoutWorkIsNotStarted(t *testing.T) {
	p := newPod(t, session.Document{IdleTimeout: metav1.Duration{Duration: time.Millisecond},
		Agent: agent("touch $PARLEY_WORKSPACE/ran")})
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonIdle {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
	if _, err := os.Stat(filepath.Join(p.workspace, "ran")); err == nil {
		t.Error("the agent ran")
	}
}

// restless is a script that starts a child outside its process group. It writes both process IDs to
// files and waits.
const restless = `cd "$PARLEY_WORKSPACE"; trap 'touch terminated; exit 0' TERM
	setsid sh -c 'echo $$ > runaway; exec sleep 1000' & echo $$ > agent
	while true; do sleep 0.01; done`

func TestAStopSignalStopsAllChildren(t *testing.T) {
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(restless), ToolServers: toolServers()})
	p.start(t)
	p.waitReady(t)
	pids := []string{processOf(t, filepath.Join(p.workspace, "agent")), processOf(t, filepath.Join(p.workspace,
		"runaway"))}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, got := p.wait(t); code != 128+int(syscall.SIGTERM) || got != (session.Termination{}) {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
	if _, err := os.Stat(filepath.Join(p.workspace, "terminated")); err != nil {
		t.Error("the agent was not asked to end")
	}
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("process %s still runs", pid)
		}
	}
}

func TestAKilledSessionLeavesNoProcesses(t *testing.T) {
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(restless),
		Repository: &session.Repository{Name: repository(t)}})
	p.start(t)
	p.waitReady(t)
	pids := []string{processOf(t, filepath.Join(p.workspace, "agent")), processOf(t, filepath.Join(p.workspace,
		"runaway"))}
	p.killSession(t)
	if _, got := p.wait(t); got != (session.Termination{}) {
		t.Errorf("it said %+v", got)
	}
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("process %s still runs", pid)
		}
	}
}

func TestOrphanProcessesAreReaped(t *testing.T) {
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(`cd "$PARLEY_WORKSPACE"
		(sh -c 'echo $$ > orphan; while [ ! -e go ]; do sleep 0.01; done' &)
		while true; do sleep 0.01; done`)})
	p.start(t)
	orphan := processOf(t, filepath.Join(p.workspace, "orphan"))
	write(t, filepath.Join(p.workspace, "go"), "")
	eventually(t, "the orphan is gone, not a zombie", func() bool { return gone(orphan) })
}

func TestTheInstallCommandCopiesTheProgramsIntoADirectory(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	image, dir, programs := t.TempDir(), t.TempDir(), []string{"agent", "runtime", "supervisor"}
	runtime := filepath.Join(image, "runtime")
	if err := os.Link(path, runtime); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(image, "agent"), "the agent")
	if exec.Command(runtime, "install", dir).Run() == nil {
		t.Error("an image without a supervisor is accepted")
	}
	write(t, filepath.Join(image, "supervisor"), "the supervisor")
	for range 2 { // the second run replaces the files
		if output, err := exec.Command(runtime, "install", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	for _, name := range programs {
		installed, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		shipped, err := os.ReadFile(filepath.Join(image, name))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o755 || !bytes.Equal(installed,
			shipped) {
			t.Errorf("%s: %v, %v, %d bytes of %d", name, info, err, len(installed), len(shipped))
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != len(programs) {
		t.Errorf("in the directory: %v, %v", entries, err)
	}
	if err := exec.Command(runtime, "install", filepath.Join(dir, "missing")).Run(); err == nil {
		t.Error("a missing directory is accepted")
	}
}

func TestTheSupervisorListensOnTheSessionPortByDefault(t *testing.T) {
	t.Setenv("PARLEY_BIND_ADDRESS", "")
	if got, want := supervise.ReadConfig().BindAddress, fmt.Sprintf(":%d", session.Port); got != want {
		t.Errorf("it listens at %s, not at %s", got, want)
	}
}

func childrenOf(t *testing.T, parent int) []int {
	t.Helper()
	// The kernel lists the children of each thread separately.
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}
