package main_test

import (
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

func TestASessionThatNoLongerAnswersIsEnded(t *testing.T) {
	t.Parallel() // it waits for five answers that do not come, of two seconds each
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent("while true; do sleep 1; done")})
	p.image = []string{"PARLEY_ASK_INTERVAL=20ms", "PARLEY_ASK_TIMEOUT=2s"}
	p.start(t)
	p.waitReady(t)
	children := childrenOf(t, p.cmd.Process.Pid)
	if len(children) != 1 {
		t.Fatalf("the supervisor has the children %v", children)
	}
	if err := syscall.Kill(children[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	code, _ := p.wait(t)
	message, err := os.ReadFile(p.termination)
	if code != 128+int(syscall.SIGKILL) || err != nil || session.WhyEnded(string(message)) != session.Unresponsive {
		t.Errorf("it ended with status %d: %s (%v)", code, message, err)
	}
	for _, want := range []string{"does not answer, 3 times in a row: it is told to end", "neither answers nor ends: it is killed"} {
		if !strings.Contains(p.output(), want) {
			t.Errorf("it did not say %q", want)
		}
	}
}

func TestASessionThatAnswersIsLeftAlone(t *testing.T) {
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(`while [ ! -e "$PARLEY_WORKSPACE/go" ]; do sleep 0.01; done`)})
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
