package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// counting is a script that records each of its starts and then runs forever.
const counting = `cd "$PARLEY_WORKSPACE"; echo $$ >> runs; while true; do sleep 0.01; done`

func (p *pod) runs(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.workspace, "runs"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// killSession kills the runtime's process, like the OOM killer.
func (p *pod) killSession(t *testing.T) {
	t.Helper()
	for _, child := range childrenOf(t, p.cmd.Process.Pid) {
		if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	if code, _ := p.wait(t); code != 128+int(syscall.SIGKILL) {
		t.Errorf("it ended with status %d", code)
	}
}

func TestInterruptedCommandsAreNotRunAgain(t *testing.T) {
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(counting),
		Repository: &session.Repository{Name: repository(t)}})
	p.start(t)
	eventually(t, "the agent runs", func() bool { return p.runs(t) == 1 })
	p.killSession(t)
	p.start(t)
	code, got := p.wait(t)
	if code != 0 || got.Reason != v1alpha1.ReasonFailed || !strings.Contains(got.Message, "interrupted") ||
		!strings.Contains(got.Message, "not done at all") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
	p.start(t)
	p.waitReady(t)
	if runs := p.runs(t); runs != 1 {
		t.Errorf("the agent was started %d times", runs)
	}
}

func TestTheNextAttemptStartsTheAgentIfTheFirstDidNot(t *testing.T) {
	servers := toolServers()
	never := filepath.Join(t.TempDir(), "never")
	servers.Stdio[0].Env = append(servers.Stdio[0].Env, session.EnvVar{Name: waitVariable, Value: never})
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(counting), ToolServers: servers,
		Repository: &session.Repository{Name: repository(t)}})
	p.start(t)
	eventually(t, "it waits for its tools", func() bool {
		_, step := p.get(t, session.ReadyPath)
		return strings.Contains(step, "connecting")
	})
	p.killSession(t)
	write(t, never, "")
	p.start(t)
	p.waitReady(t)
	if got := p.status(t); !got.Workspace.Resumed {
		t.Errorf("after the restart the status is %+v", got)
	}
	eventually(t, "the agent works", func() bool { return p.runs(t) == 1 })
}

func TestAFailedAgentStartIsRetriedByTheNextAttempt(t *testing.T) {
	p := newPod(t, session.Document{FirstMessage: "go", Agent: &session.Agent{Name: "x",
		Command: []string{"no-such-agent"}}})
	for range 2 {
		p.start(t)
		if code, got := p.wait(t); code != 0 || !strings.Contains(got.Message, "the agent x cannot be started") {
			t.Errorf("it ended with status %d: %+v", code, got)
		}
	}
}

func TestASessionWithoutWorkCanBeRestarted(t *testing.T) {
	p := newPod(t, session.Document{IdleTimeout: metav1.Duration{Duration: time.Millisecond}, Agent: agent(counting)})
	for range 2 {
		p.start(t)
		if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonIdle {
			t.Errorf("it ended with status %d: %+v", code, got)
		}
	}
	if entries, err := os.ReadDir(p.workspace); err != nil || len(entries) != 1 || entries[0].Name() != ".parley" {
		t.Errorf("in the workspace: %v, %v", entries, err)
	}
}

func TestTheAgentDoesNotStartWithoutAJournal(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent("touch " + ran)})
	p.workspace = "/proc" // not even root can write there
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonFailed || !strings.Contains(got.Message,
		".parley") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the agent ran")
	}
}

func TestAFinishedSessionCanBeRestartedToReadItsFiles(t *testing.T) {
	const once = `echo >> "$PARLEY_WORKSPACE/runs"`
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(once)})
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonCompleted {
		t.Fatalf("it ended with status %d: %+v", code, got)
	}
	p.start(t)
	p.waitReady(t)
	if got := p.status(t); got.Agent.State != session.AgentEnded || p.runs(t) != 1 {
		t.Errorf("after the restart the agent ran %d times, and the status is %+v", p.runs(t), got)
	}
}

// The first attempt cannot write its termination message.
func TestTheNextAttemptReportsTheResultIfTheFirstCouldNot(t *testing.T) {
	for reason, script := range map[string]string{v1alpha1.ReasonCompleted: "echo all is well",
		v1alpha1.ReasonFailed: "exit 3"} {
		p := newPod(t, session.Document{FirstMessage: "go", OneShot: true, Agent: agent(`echo >> "$PARLEY_WORKSPACE/runs"; ` +
			script)})
		termination := p.termination
		p.termination = filepath.Join(p.dir, "not", "there")
		p.start(t)
		if code, _ := p.wait(t); code != 1 {
			t.Fatalf("it ended with status %d, though it could not report the reason", code)
		}
		p.termination = termination
		p.start(t)
		code, got := p.wait(t)
		if code != 0 || got.Reason != reason || p.runs(t) != 1 {
			t.Errorf("after %d runs it ended with status %d: %+v", p.runs(t), code, got)
		}
		if reason == v1alpha1.ReasonCompleted && (got.Result == nil || !strings.Contains(got.Result.Summary, "all is well")) {
			t.Errorf("its result is %+v", got.Result)
		}
		p.start(t)
		p.waitReady(t)
	}
}

func TestAReadinessProbeWaitsForTheSession(t *testing.T) {
	servers := toolServers()
	come := filepath.Join(t.TempDir(), "come")
	servers.Stdio[0].Env = append(servers.Stdio[0].Env, session.EnvVar{Name: waitVariable, Value: come})
	p := newPod(t, session.Document{ToolServers: servers})
	p.start(t)
	eventually(t, "it waits for its tools", func() bool {
		_, step := p.get(t, session.ReadyPath)
		return strings.Contains(step, "connecting")
	})
	answered := make(chan int, 1)
	go func() {
		code, _ := p.get(t, session.AwaitReadyPath)
		answered <- code
	}()
	if code, _ := p.get(t, session.ReadyPath); code != http.StatusServiceUnavailable {
		t.Errorf("a probe that does not wait gets %d", code)
	}
	write(t, come, "")
	if code := <-answered; code != http.StatusOK {
		t.Errorf("a waiting probe gets %d", code)
	}
}
