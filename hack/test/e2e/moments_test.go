package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// moments maps the name of each event to the time at which the event first happened.
type moments struct {
	mu      sync.Mutex
	at      map[string]time.Time
	changed chan struct{} // closed and replaced at each new moment
}

func newMoments() *moments { return &moments{at: map[string]time.Time{}, changed: make(chan struct{})} }

func (m *moments) record(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.at[name]; known {
		return
	}
	m.at[name] = time.Now()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *moments) await(ctx context.Context, name string) (time.Time, error) {
	for {
		m.mu.Lock()
		at, known := m.at[name]
		changed := m.changed
		m.mu.Unlock()
		if known {
			return at, nil
		}
		select {
		case <-ctx.Done():
			return at, fmt.Errorf("%s: %w", name, context.Cause(ctx))
		case <-changed:
		}
	}
}

func attemptKey(name string, attempt int32) string {
	return fmt.Sprintf("%s/%d", name, max(1, attempt))
}

// watchRunning records when each attempt is RUNNING. It also records when each pod is ready,
// because bare pods, which belong to no session, have no attempts.
func (t *t) watchRunning(namespace string) *moments {
	m := newMoments()
	for _, list := range []client.ObjectList{&v1alpha1.ConversationList{}, &corev1.PodList{}} {
		go func() {
			for t.ctx.Err() == nil {
				// Each watch begins with the existing objects, so no change is missed.
				if events, err := t.client.Watch(t.ctx, list, client.InNamespace(namespace)); err == nil {
					recordRunning(m, events)
				}
			}
		}()
	}
	return m
}

func recordRunning(m *moments, events watch.Interface) {
	defer events.Stop()
	for event := range events.ResultChan() {
		switch o := event.Object.(type) {
		case *v1alpha1.Conversation:
			if o.Status.State == v1alpha1.StateRunning {
				m.record(attemptKey(o.Name, o.Status.Attempt))
			}
		case *corev1.Pod:
			if isReady(o) {
				m.record(attemptKey(o.Name, 1))
			}
		}
	}
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Commands of the agent's tool calls in the first and in the second turn.
const (
	firstCommand  = "echo the work of the first turn > made"
	secondCommand = "cat made"
)

// task returns the message of a turn. taskPattern finds this message in a request to the model.
func task(name string, turn int) string { return fmt.Sprintf("Work on %s turn %d.", name, turn) }

var taskPattern = regexp.MustCompile(`Work on (\S+ turn \d)\.`)

// working is a model for many sessions. It lets the agent call one tool in each turn, and records
// the time at which it receives the tool's result.
type working struct {
	called  *moments
	mu      sync.Mutex
	results map[string]string // keyed by the name of the session and the turn
}

func (t *t) workingModel() (w *working, baseURL string) {
	w = &working{called: newMoments(), results: map[string]string{}}
	call := func(command string) []scriptedmodel.Call {
		return []scriptedmodel.Call{{Name: "execute_bash",
			Input: scriptedmodel.Input(map[string]any{"command": command})}}
	}
	const always = 1 << 30
	_, baseURL = t.scriptedModel(
		scriptedmodel.Step{Text: "Done.", Times: always, When: w.hasResult},
		scriptedmodel.Step{Calls: call(firstCommand), Times: always, When: asksForTurn("1")},
		scriptedmodel.Step{Calls: call(secondCommand), Times: always, When: asksForTurn("2")},
	)
	return w, baseURL
}

// hasResult reports whether the request ends with the result of a call, and records the result.
func (w *working) hasResult(r *scriptedmodel.Request) bool {
	if len(r.Turns) == 0 || len(r.Turns[len(r.Turns)-1].Results) == 0 {
		return false
	}
	name := lastTask(r)
	w.mu.Lock()
	w.results[name] = r.Turns[len(r.Turns)-1].Results[0].Text
	w.mu.Unlock()
	w.called.record(name)
	return true
}

func (w *working) result(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.results[name]
}

func asksForTurn(turn string) func(*scriptedmodel.Request) bool {
	return func(r *scriptedmodel.Request) bool {
		return len(r.Tools) > 0 && strings.HasSuffix(lastTask(r), " "+turn)
	}
}

func lastTask(r *scriptedmodel.Request) string {
	all := taskPattern.FindAllStringSubmatch(r.Said(), -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1][1]
}
