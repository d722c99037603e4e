package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

const (
	// warmSessions is the number of sessions that start first and are not measured.
	warmSessions   = 2
	sessionTimeout = time.Minute
	// A session's memory has settled when this many samples in a row show no decrease.
	settledSamples = 10
	sampleInterval = 200 * time.Millisecond
)

// startNode runs sessions as processes of this machine, with Parley's agent.
func (b *bed) startNode(ctx context.Context, bin string) error {
	pods, err := kubernetes.NewForConfig(b.admin)
	if err != nil {
		return err
	}
	b.node, err = node.Start(ctx, node.Options{Name: nodeName, Client: pods, Program: filepath.Join(bin, "supervisor"),
		State: b.dir, Logs: filepath.Join(b.dir, "sessions"), Say: say}, make(chan struct{}))
	return err
}

// measuredSession contains the times and the memory of one session.
type measuredSession struct {
	// toRequest is the time from POST to the first request to the model. toToolCall is the time
	// from POST to the first tool call.
	toRequest, toToolCall time.Duration
	memory                map[string]sample // keyed by the name of the program
}

// measureSessions measures real sessions, one after the other.
func measureSessions(ctx context.Context, o options, r *report) (err error) {
	b, ctx, end, err := startBed(ctx, o, plan{audit: auditPolicy, sessions: true})
	if err != nil {
		return err
	}
	defer end()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // a dead process is the cause of the failure
		}
	}()
	count := warmSessions + o.sessions
	model := scriptedmodel.New(scriptOf(b.dir, count))
	server := httptest.NewServer(model)
	defer server.Close()
	if err := b.send(ctx, http.MethodPost, "/api/settings", map[string]any{"llm_model": "scripted/model",
		"llm_base_url": server.URL, "llm_api_key": "a-key-for-nothing"}); err != nil {
		return err
	}
	var measured []measuredSession
	for i := range count {
		m, err := b.measureSession(ctx, i, model)
		if err != nil {
			return fmt.Errorf("session %d: %w", i, err)
		}
		measured = append(measured, m)
	}
	reportSessions(r, measured[warmSessions:])
	return nil
}

// scriptOf returns the model's answers to the sessions. Each session calls one tool, which writes
// the time to a file. Then the session ends its turn.
func scriptOf(dir string, count int) (script scriptedmodel.Script) {
	for i := range count {
		command := scriptedmodel.Input(map[string]any{"command": "date +%s%N > " + calledFile(dir, i)})
		script.Steps = append(script.Steps,
			scriptedmodel.Step{Calls: []scriptedmodel.Call{{Name: "execute_bash", Input: command}}},
			scriptedmodel.Step{Text: "Done."})
	}
	return script
}

func calledFile(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("called-%d", i)) }

// measureSession starts a session, waits for the end of its turn, and deletes it.
func (b *bed) measureSession(ctx context.Context, i int, model *scriptedmodel.Server) (m measuredSession, err error) {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	id, received, left := fmt.Sprintf("session-%03d", i), model.Received(), model.Remaining()
	begin := time.Now()
	if err := b.send(ctx, http.MethodPost, "/api/conversations", map[string]any{"conversation_id": id,
		"initial_user_msg": "work"}); err != nil {
		return m, err
	}
	select {
	case <-received:
		m.toRequest = time.Since(begin)
	case <-ctx.Done():
		return m, context.Cause(ctx)
	}
	if err := cluster.Retry(ctx, pollInterval, func(context.Context) error {
		if model.Remaining() > left-2 {
			return fmt.Errorf("the turn is not over; the model refused %q", model.Violations())
		}
		return nil
	}); err != nil {
		return m, err
	}
	text, err := os.ReadFile(calledFile(b.dir, i))
	if err != nil {
		return m, err
	}
	called, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return m, err
	}
	m.toToolCall = time.Unix(0, called).Sub(begin)
	if m.memory, err = settledMemory(ctx); err != nil {
		return m, err
	}
	if err := b.send(ctx, http.MethodDelete, "/api/conversations/"+id, nil); err != nil {
		return m, err
	}
	return m, cluster.Retry(ctx, pollInterval, func(context.Context) error {
		running, err := sessionProcesses()
		if err == nil && len(running) > 0 {
			err = fmt.Errorf("the processes %v of the session have not ended", running)
		}
		return err
	})
}

func (b *bed) send(ctx context.Context, method, path string, body any) error {
	var answer any
	return parley.Send(ctx, http.DefaultClient, method, b.parley.FacadeURL()+path, b.key, body, &answer)
}

// settledMemory returns the memory of the only session. It waits until the memory no longer
// decreases, because a session releases its startup memory gradually.
func settledMemory(ctx context.Context) (least map[string]sample, err error) {
	total := func(all map[string]sample) (sum float64) {
		for _, s := range all {
			sum += s.resident
		}
		return sum
	}
	for same := 0; same < settledSamples; same++ {
		processes, err := sessionProcesses()
		if err != nil {
			return nil, err
		}
		now := map[string]sample{}
		for pid, name := range processes {
			s, err := sampleOf(pid)
			if err != nil {
				continue // a process of the turn has just ended
			}
			now[name] = sample{memory: now[name].memory + s.memory, resident: now[name].resident + s.resident}
		}
		if least == nil || total(now) < total(least) {
			least, same = now, 0
		}
		if err := cluster.Sleep(ctx, sampleInterval); err != nil {
			return nil, err
		}
	}
	return least, nil
}

// sessionProcesses maps the process IDs of sessions to the names of their programs. The processes
// are the supervisors, which this program started, and all their descendants.
func sessionProcesses() (map[int]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	names, children, found := map[int]string{}, map[int][]int{}, map[int]string{}
	for _, file := range files {
		text, _ := os.ReadFile(file) // a process may have ended
		before, after, _ := strings.Cut(string(text), " (")
		name, after, _ := strings.Cut(after, ") ")
		var state string
		var pid, parent int
		if _, err := fmt.Sscan(before+" "+after, &pid, &state, &parent); err == nil && state != "Z" {
			names[pid], children[parent] = name, append(children[parent], pid)
		}
	}
	var ours []int
	for _, pid := range children[os.Getpid()] {
		if names[pid] == "supervisor" {
			ours = append(ours, pid)
		}
	}
	for ; len(ours) > 0; ours = ours[1:] {
		found[ours[0]] = names[ours[0]]
		ours = append(ours, children[ours[0]]...)
	}
	return found, nil
}

func reportSessions(r *report, all []measuredSession) {
	part := fmt.Sprintf("%s: %d sessions one after the other, as real processes, with a scripted model", partSession,
		len(all))
	row := func(what, unit string, value func(measuredSession) float64) {
		taken := turns{name: conversations}
		for _, m := range all {
			taken.values = append(taken.values, value(m))
		}
		r.compareTurns(part, what, unit, []turns{taken})
	}
	row("from POST /api/conversations to the first request to the model", "ms",
		func(m measuredSession) float64 { return ms(m.toRequest) })
	row("from POST /api/conversations to the first tool call", "ms",
		func(m measuredSession) float64 { return ms(m.toToolCall) })
	sum := func(m measuredSession, value func(sample) float64) (sum float64) {
		for _, s := range m.memory {
			sum += value(s)
		}
		return sum
	}
	row("memory of an idle session (RSS)", "MiB", func(m measuredSession) float64 {
		return sum(m, func(s sample) float64 { return s.resident })
	})
	for _, name := range []string{"supervisor", "runtime", "agent"} {
		row("memory of an idle session (RSS): "+name, "MiB",
			func(m measuredSession) float64 { return m.memory[name].resident })
	}
	row("memory of an idle session, except the pages of program files (RssAnon)", "MiB", func(m measuredSession) float64 {
		return sum(m, func(s sample) float64 { return s.memory })
	})
}
