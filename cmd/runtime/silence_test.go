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

const toldToEnd = "does not answer, 3 times in a row: it is told to end"

// askedOften has the session asked all the time. It is told to end after three seconds of silence:
// no test machine is that slow.
var askedOften = []string{"PARLEY_ASK_INTERVAL=20ms", "PARLEY_ASK_TIMEOUT=1s"}

// runtime is the process that does the work.
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

// silence the session until it is told to end. It comes to know that only when it goes on.
func (p *pod) silence(t *testing.T) {
	t.Helper()
	signal(t, p.runtime(t), syscall.SIGSTOP)
	eventually(t, "it is told to end", func() bool { return strings.Contains(p.output(), toldToEnd) })
}

// whyEnded waits for an end that is not the session's own.
func (p *pod) whyEnded(t *testing.T) (code int, why string) {
	t.Helper()
	code, _ = p.wait(t)
	message, err := os.ReadFile(p.termination)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return code, session.WhyEnded(string(message))
}

// leaving is a session that has failed, and waits for an archive until it is let go.
func leaving(t *testing.T, variables ...string) (p *pod, letGo func()) {
	t.Helper()
	p = newPod(t, session.Document{UID: "u1", FirstMessage: "work", OneShot: true, Agent: agent("exit 3")})
	kept(t, p)
	archive, err := url.Parse(p.doc.ArchiveURL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(archive)
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {} // whoever asked was killed
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

func TestASessionThatNoLongerAnswersIsEnded(t *testing.T) {
	t.Parallel() // it waits for answers that do not come, of a second each
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent("while true; do sleep 1; done")})
	p.image = append(askedOften, "PARLEY_END_TIMEOUT=100ms")
	p.start(t)
	p.waitReady(t)
	// A signal that tells nobody to end changes nothing.
	signal(t, p.cmd.Process.Pid, syscall.SIGUSR1)
	p.silence(t)
	if code, why := p.whyEnded(t); code != 128+int(syscall.SIGKILL) || why != session.Unresponsive {
		t.Errorf("it ended with status %d: %q", code, why)
	}
	if want := "was told to end and does not: it is killed"; !strings.Contains(p.output(), want) {
		t.Errorf("it did not say %q", want)
	}
}

func TestASessionThatEndsByItselfAfterItWasToldSaysWhy(t *testing.T) {
	t.Parallel()
	p, letGo := leaving(t, askedOften...)
	p.silence(t)
	letGo()
	signal(t, p.runtime(t), syscall.SIGCONT)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonFailed ||
		got.Message != "the agent test ended with status 3" {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

func TestASessionThatAnswersAgainAndDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()
	p, letGo := leaving(t, append(askedOften, "PARLEY_END_TIMEOUT=1s")...)
	t.Cleanup(letGo)
	p.silence(t)
	signal(t, p.runtime(t), syscall.SIGCONT)
	if code, why := p.whyEnded(t); code != 128+int(syscall.SIGKILL) || why != session.Unresponsive {
		t.Errorf("it ended with status %d: %q", code, why)
	}
}

// Behind a signal that comes from within the pod stands nobody who kills what does not end.
func TestASessionThatASignalDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()
	p, letGo := leaving(t, "PARLEY_END_TIMEOUT=1s")
	t.Cleanup(letGo)
	signal(t, p.cmd.Process.Pid, syscall.SIGTERM)
	if code, why := p.whyEnded(t); code != 128+int(syscall.SIGKILL) || why != "" {
		t.Errorf("it ended with status %d: %q", code, why)
	}
}

// A session at the limit of its memory is silent before the kernel kills it.
func TestASilentSessionThatSomebodyElseKillsIsNotCalledSilent(t *testing.T) {
	for name, c := range map[string]struct{ kills, why string }{
		"the kernel, for its memory": {"oom 1\noom_kill 1\n", session.OOMKilled}, "somebody": {"oom 0\noom_kill 0\n", ""},
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
			if code, why := p.whyEnded(t); code != 128+int(syscall.SIGKILL) || why != c.why {
				t.Errorf("it ended with status %d: %q", code, why)
			}
		})
	}
}

func TestASessionThatAnswersIsLeftAlone(t *testing.T) {
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(`while [ ! -e "$PARLEY_WORKSPACE/go" ]; do sleep ` +
		`0.01; done`)})
	p.image = []string{"PARLEY_ASK_INTERVAL=1ms"}
	p.start(t)
	p.waitReady(t)
	for range 200 { // each takes longer than a question
		if code, _ := p.get(t, session.AlivePath); code != http.StatusOK {
			t.Fatalf("it answers %d", code)
		}
	}
	write(t, p.workspace+"/go", "")
	if code, got := p.wait(t); code != 0 || strings.Contains(p.output(), "supervisor:") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}
