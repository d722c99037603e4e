package main_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// steeredPod returns a session with Parley's agent. The agent's first command waits for the file
// "go" and then for half a second, so that a message can arrive during the command.
func steeredPod(t *testing.T) (*pod, *scriptedmodel.Server) {
	t.Helper()
	steps := byTranscript(
		scriptedmodel.Step{Calls: []scriptedmodel.Call{bash("echo one >> log; until test -e go; do sleep 0.01; done; " +
			"sleep 0.5")}},
		scriptedmodel.Step{Calls: []scriptedmodel.Call{bash("echo two >> log")}},
		scriptedmodel.Step{Text: "I am done."},
	)
	return scripted(t, nil, append(steps, scriptedmodel.Step{Text: "Also done.", Times: 100})...)
}

// steer sends a message during the first command, and lets the command end.
func (p *pod) steer(t *testing.T) {
	t.Helper()
	eventually(t, "the command runs", func() bool { return p.file("log") == "one\n" })
	p.send(t, `{"action":"message","args":{"content":"Use key B."}}`)
	write(t, p.workspace+"/go", "")
}

func lastWords(model *scriptedmodel.Server) string {
	requests := model.Requests()
	return requests[len(requests)-1].Said()
}

func TestAMessageDuringATurnReachesTheModelExactlyOnceDespiteAKill(t *testing.T) {
	undisturbed, model := steeredPod(t)
	undisturbed.start(t)
	undisturbed.steer(t)
	eventually(t, "the turn is over", func() bool { return over(undisturbed.eventLines(t)) })
	want := undisturbed.eventLines(t)
	sent, delivered := 0, 0
	for i, e := range undisturbed.events(t) {
		if e.IsUserMessage() {
			sent = i
		}
		if e.Meta != nil && e.Meta.Delivered != nil {
			delivered = *e.Meta.Delivered
		}
	}
	if requests := model.Requests(); len(requests) != 3 || !requests[1].Contains("key B") || delivered != sent ||
		sent == 1 {
		t.Fatalf("the message %d reached the model late; the events are\n%s", sent, strings.Join(want, "\n"))
	}
	for n := sent + 1; n < len(want); n++ {
		t.Run(fmt.Sprintf("%d %s", n, want[n-1]), func(t *testing.T) {
			p, model := steeredPod(t)
			p.start(t)
			p.steer(t)
			eventually(t, "the event", func() bool { return len(p.eventLines(t)) >= n })
			p.killSession(t)
			p.start(t)
			eventually(t, "the message reached the model", func() bool {
				return over(p.eventLines(t)) && strings.Contains(lastWords(model), "key B")
			})
			turns := 0
			for _, e := range p.events(t) {
				if e.StateOf() == session.StateAwaiting {
					turns++
				}
			}
			if text := lastWords(model); strings.Count(text, "key B") != 1 || turns > 2 {
				t.Errorf("%d turns; the last request says %q", turns, text)
			}
			if log := p.file("log"); strings.Count(log, "one") != 1 || strings.Count(log, "two") > 1 {
				t.Errorf("a command ran twice: %q", log)
			}
			if violations := model.Violations(); len(violations) > 0 {
				t.Errorf("the model refused: %q", violations)
			}
		})
	}
}
