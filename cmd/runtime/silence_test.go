package main_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const askedToEnd = "did not answer 3 probes in a row; asking it to stop"

// askedOften makes the supervisor probe the session constantly. After three unanswered probes of
// one second each, the supervisor asks the session to stop. A running session answers in time, even
// on a slow machine.
var askedOften = []string{"PARLEY_ASK_INTERVAL=20ms", "PARLEY_ASK_TIMEOUT=1s"}

func (p *pod) runtime(t *testing.T) int {
	t.Helper()
	children := childrenOf(t, p.cmd.Process.Pid)
	if len(children) != 1 {
		t.Fatalf("the supervisor has the children %v", children)
	}
	return children[0]
}

func signal(t *testing.T, pid int, number syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, number); err != nil {
		t.Fatal(err)
	}
}

// silence suspends the runtime, and waits until the supervisor has sent SIGTERM. The runtime stays
// suspended. It handles SIGTERM only if the test resumes it.
func (p *pod) silence(t *testing.T) {
	t.Helper()
	signal(t, p.runtime(t), syscall.SIGSTOP)
	eventually(t, "it is asked to end", func() bool { return strings.Contains(p.output(), askedToEnd) })
}

func (p *pod) whyEnded(t *testing.T) (code int, reason string) {
	t.Helper()
	code, _ = p.wait(t)
	message, err := os.ReadFile(p.termination)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return code, session.WhyEnded(string(message))
}

// leaving returns a session whose agent has failed. The session's hand-over to the archive blocks
// until letGo() is called.
func leaving(t *testing.T, variables ...string) (p *pod, letGo func()) {
	t.Helper()
	p = newPod(t, session.Document{UID: "u1", FirstMessage: "work", OneShot: true, Agent: agent("exit 3")})
	startArchive(t, p)
	archive, err := url.Parse(p.doc.ArchiveURL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(archive)
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {} // the client was killed
	asked, let := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, session.ArchiveEnd) {
			asked <- struct{}{}
			<-let
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	letGo = func() { close(let) }
	p.doc.ArchiveURL = server.URL
	p.writeDocument(t)
	p.image = variables
	p.start(t)
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("the session does not end")
	}
	return p, letGo
}

func TestAnUnresponsiveSessionIsStopped(t *testing.T) {
	t.Parallel() // the test waits for three probes, which time out after a second each
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent("while true; do sleep 1; done")})
	p.image = append(askedOften, "PARLEY_END_TIMEOUT=100ms")
	p.start(t)
	p.waitReady(t)
	// A signal that does not ask the session to stop has no effect.
	signal(t, p.cmd.Process.Pid, syscall.SIGUSR1)
	p.silence(t)
	if code, reason := p.whyEnded(t); code != 128+int(syscall.SIGKILL) || reason != session.Unresponsive {
		t.Errorf("it ended with status %d: %q", code, reason)
	}
	if want := "did not stop when asked; killing it"; !strings.Contains(p.output(), want) {
		t.Errorf("it did not say %q", want)
	}
}

func TestAnUnresponsiveSessionThatStopsWhenAskedIsNotReportedAsUnresponsive(t *testing.T) {
	t.Parallel()
	p, letGo := leaving(t, askedOften...)
	p.silence(t)
	letGo()
	signal(t, p.runtime(t), syscall.SIGCONT)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonFailed ||
		got.Message != "the agent test exited with status 3" {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

func TestASessionThatAnswersAgainButDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()
	p, letGo := leaving(t, append(askedOften, "PARLEY_END_TIMEOUT=1s")...)
	t.Cleanup(letGo)
	p.silence(t)
	signal(t, p.runtime(t), syscall.SIGCONT)
	if code, reason := p.whyEnded(t); code != 128+int(syscall.SIGKILL) || reason != session.Unresponsive {
		t.Errorf("it ended with status %d: %q", code, reason)
	}
}

// The kubelet does not notice a SIGTERM that a process in the pod sends, so it does not kill a
// session that continues after this signal. The supervisor must kill the session instead.
func TestASessionThatDoesNotEndAfterASignalIsKilled(t *testing.T) {
	t.Parallel()
	p, letGo := leaving(t, "PARLEY_END_TIMEOUT=1s")
	t.Cleanup(letGo)
	signal(t, p.cmd.Process.Pid, syscall.SIGTERM)
	if code, reason := p.whyEnded(t); code != 128+int(syscall.SIGKILL) || reason != "" {
		t.Errorf("it ended with status %d: %q", code, reason)
	}
}

// A session at its memory limit leaves probes unanswered before the kernel kills it. The supervisor
// must not report the unanswered probes as the reason.
func TestASessionKilledByTheKernelOrAnotherProcessIsNotReportedAsUnresponsive(t *testing.T) {
	for name, c := range map[string]struct{ kills, reason string }{
		"the kernel, for its memory": {"oom 1\noom_kill 1\n", session.OOMKilled},
		"another process":            {"oom 0\noom_kill 0\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, dir := newPod(t, session.Document{}), cgroups(t)
			p.image = append(askedOften, "PARLEY_CGROUP_DIR="+dir)
			p.start(t)
			p.waitReady(t)
			p.silence(t)
			write(t, filepath.Join(dir, "memory.events"), c.kills)
			signal(t, p.runtime(t), syscall.SIGKILL)
			if code, reason := p.whyEnded(t); code != 128+int(syscall.SIGKILL) || reason != c.reason {
				t.Errorf("it ended with status %d: %q", code, reason)
			}
		})
	}
}

func TestASessionThatAnswersProbesIsNotStopped(t *testing.T) {
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(`while [ ! -e "$PARLEY_WORKSPACE/go" ]; do sleep ` +
		`0.01; done`)})
	p.image = []string{"PARLEY_ASK_INTERVAL=1ms"}
	p.start(t)
	p.waitReady(t)
	for range 200 { // meanwhile, the supervisor sends probes
		if code, _ := p.get(t, session.AlivePath); code != http.StatusOK {
			t.Fatalf("it answers %d", code)
		}
	}
	// Check the output before the session ends. An ending session stops responding, and the supervisor
	// may then print that it asks the session to stop.
	if strings.Contains(p.output(), "supervisor:") {
		t.Errorf("the supervisor ended a session that answers: %s", p.output())
	}
	write(t, p.workspace+"/go", "")
	if code, got := p.wait(t); code != 0 {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}
