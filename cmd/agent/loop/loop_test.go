package loop

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
)

type script struct {
	steps        []any // an llm.Answer, or an error
	requests     []llm.Request
	beforeAnswer func()
}

func (s *script) Answer(_ context.Context, r llm.Request, sink llm.Sink) (llm.Answer, error) {
	if s.beforeAnswer != nil {
		s.beforeAnswer()
	}
	r.Messages = append([]llm.Message(nil), r.Messages...)
	s.requests = append(s.requests, r)
	if len(s.requests) > len(s.steps) {
		return llm.Answer{}, errors.New("unexpected request to the model")
	}
	if answer, ok := s.steps[len(s.requests)-1].(llm.Answer); ok {
		sink(answer.Message.Text(), "")
		return answer, nil
	}
	return llm.Answer{}, s.steps[len(s.requests)-1].(error)
}

func says(text string) llm.Answer {
	return llm.Answer{Stop: llm.StopEnd, Message: llm.Message{Role: llm.Assistant, Parts: []llm.Part{{Text: text}}}}
}

func calls(names ...string) llm.Answer {
	answer := llm.Answer{Stop: llm.StopTools, Message: llm.Message{Role: llm.Assistant}}
	for _, name := range names {
		name, input, _ := strings.Cut(name, " ")
		answer.Message.Parts = append(answer.Message.Parts, llm.Part{Call: &llm.Call{ID: "c", Name: name, Input: input}})
	}
	return answer
}

// client stores all updates. Its field answer is the response to each permission request.
type client struct {
	mu      sync.Mutex
	updates []string
	asked   int
	answer  acp.PermissionOutcome
}

func (c *client) Notify(_ string, params any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.updates = append(c.updates, string(params.(acp.UpdateParams).Update))
	return nil
}

func (c *client) Call(_ context.Context, _ string, _, result any) error {
	c.asked++
	*result.(*acp.PermissionResult) = acp.PermissionResult{Outcome: c.answer}
	return nil
}

func newSession(t *testing.T, m *script, adjust ...func(*Options)) (*Session, *client) {
	t.Helper()
	c, options := &client{}, Options{Home: t.TempDir(), Model: m, Condense: true}
	for _, a := range adjust {
		a(&options)
	}
	s, err := New(t.Context(), c, options, acp.SessionParams{Cwd: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, c
}

func (s *Session) prompt(t *testing.T, turn, text string) (acp.StopReason, error) {
	t.Helper()
	return s.Prompt(t.Context(), acp.PromptParams{Prompt: []acp.Content{*acp.Text(text)},
		Meta: acp.Meta{acp.MetaTurn: turn}})()
}

func kindOf(err error) string {
	if known, ok := errors.AsType[*acp.Error](err); ok && known.Data != nil {
		return known.Data.Kind
	}
	return ""
}

func results(messages []llm.Message) (texts []string) {
	for _, message := range messages {
		for _, part := range message.Parts {
			if part.Result != nil {
				texts = append(texts, part.Result.Text)
			}
		}
	}
	return texts
}

func TestATurnReturnsItsStopReason(t *testing.T) {
	for stop, want := range map[llm.Stop]acp.StopReason{
		llm.StopEnd: acp.EndTurn, llm.StopRefusal: acp.Refusal,
	} {
		answer := says("That is it.")
		answer.Stop = stop
		s, _ := newSession(t, &script{steps: []any{answer}})
		if got, err := s.prompt(t, "1", "go"); got != want || err != nil {
			t.Errorf("%s: got %s, %v", stop, got, err)
		}
	}
}

func TestATurnEndsAfterTooManyTruncatedAnswers(t *testing.T) {
	m := &script{}
	for range maxContinuations + 1 {
		answer := says("More.")
		answer.Stop = llm.StopLength
		m.steps = append(m.steps, answer)
	}
	s, _ := newSession(t, m)
	if got, err := s.prompt(t, "1", "go"); got != acp.MaxTokens || err != nil || len(m.requests) != len(m.steps) {
		t.Errorf("got %s, %v after %d requests", got, err, len(m.requests))
	}
}

func TestABrokenAnswerIsRetried(t *testing.T) {
	broken := &llm.Error{Kind: llm.Network, Message: "it broke", Transient: true}
	m := &script{steps: []any{broken, says("Here.")}}
	s, c := newSession(t, m)
	if reason, err := s.prompt(t, "1", "go"); reason != acp.EndTurn || err != nil || len(m.requests) != 2 {
		t.Fatalf("got %s, %v after %d requests", reason, err, len(m.requests))
	}
	if last := c.updates[len(c.updates)-1]; !strings.Contains(last, "Here.") || !strings.Contains(last, acp.MetaSeq) {
		t.Errorf("the last update is %s", last)
	}
}

func TestAnErrorEndsTheTurnAndARepeatedPromptReturnsTheSameError(t *testing.T) {
	m := &script{steps: []any{&llm.Error{Kind: llm.Authentication, Message: "no"}, says("Better.")}}
	s, _ := newSession(t, m)
	for range 2 { // the second error comes from the log
		if _, err := s.prompt(t, "1", "go"); kindOf(err) != string(llm.Authentication) || err.Error() != "no" {
			t.Fatalf("got %v", err)
		}
	}
	if reason, err := s.prompt(t, "2", "again"); reason != acp.EndTurn || err != nil || len(m.requests) != 2 {
		t.Errorf("the next turn: %s, %v after %d requests", reason, err, len(m.requests))
	}
	if history := m.requests[1].Messages; len(history) == 0 || !strings.Contains(history[0].Text(), "go") {
		t.Errorf("the next turn lacks the history: %+v", history)
	}
}

func TestEmptyAndConcurrentPromptsAreRejected(t *testing.T) {
	m := &script{steps: []any{says("Done.")}}
	s, _ := newSession(t, m)
	if _, err := s.prompt(t, "1", "  "); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("empty prompt: %v", err)
	}
	m.beforeAnswer = func() {
		if _, err := s.prompt(t, "3", "me too"); !errors.Is(err, errBusy) {
			t.Errorf("prompt during a turn: %v", err)
		}
	}
	if reason, err := s.prompt(t, "2", "go"); reason != acp.EndTurn || err != nil {
		t.Errorf("got %s, %v", reason, err)
	}
}

func TestACancelledTurnKeepsTheModelsAnswer(t *testing.T) {
	m := &script{steps: []any{calls("execute_bash {\"command\":\"true\"}"), says("never asked for")}}
	s, _ := newSession(t, m)
	m.beforeAnswer = s.Cancel
	if reason, err := s.prompt(t, "1", "go"); reason != acp.Cancelled || err != nil || len(m.requests) != 1 {
		t.Errorf("got %s, %v after %d requests", reason, err, len(m.requests))
	}
	if got := results(s.state.history); len(got) != 1 || !strings.Contains(got[0], "the user stopped the turn") {
		t.Errorf("the results are %q", got)
	}
}

func TestTheModelLearnsWhyACallWasNotExecuted(t *testing.T) {
	cut := calls("execute_bash {\"command\":\"echo first\"}", "execute_bash {\"command\":\"echo seco")
	cut.Stop = llm.StopLength
	m := &script{steps: []any{calls("no_such_tool"), cut, says("Done.")}}
	s, c := newSession(t, m)
	if reason, err := s.prompt(t, "1", "go"); reason != acp.EndTurn || err != nil {
		t.Fatalf("got %s, %v", reason, err)
	}
	got := results(s.state.history)
	want := []string{"There is no tool with this name.", "first\n[exit code 0]", cutCall}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("the results are %q, want %q", got, want)
	}
	if updates := strings.Join(c.updates, "\n"); strings.Count(updates, `"status":"failed"`) != 2 {
		t.Errorf("the updates are\n%s", updates)
	}
}

func TestOnlyAllowedActionsAreExecuted(t *testing.T) {
	for name, c := range map[string]struct {
		answer acp.PermissionOutcome
		reason acp.StopReason
		done   bool
	}{
		"allowed":   {acp.PermissionOutcome{Outcome: "selected", OptionID: acp.AllowOnce}, acp.EndTurn, true},
		"rejected":  {acp.PermissionOutcome{Outcome: "selected", OptionID: acp.RejectOnce}, acp.EndTurn, false},
		"dismissed": {acp.PermissionOutcome{Outcome: "cancelled"}, acp.Cancelled, false},
	} {
		m := &script{steps: []any{calls(`execute_bash {"command":"touch done"}`), says("Done.")}}
		s, user := newSession(t, m, func(o *Options) { o.Confirm = true })
		user.answer = c.answer
		reason, err := s.prompt(t, "1", "go")
		_, missing := os.Stat(filepath.Join(s.state.cwd, "done"))
		if reason != c.reason || err != nil || (missing == nil) != c.done || user.asked != 1 {
			t.Errorf("%s: got %s, %v; executed: %v; asked %d times", name, reason, err, missing == nil, user.asked)
		}
	}
}

func TestReadingNeedsNoPermission(t *testing.T) {
	m := &script{steps: []any{calls(`str_replace_editor {"command":"view","path":"."}`), says("Done.")}}
	s, user := newSession(t, m, func(o *Options) { o.Confirm = true })
	if reason, err := s.prompt(t, "1", "look"); reason != acp.EndTurn || err != nil || user.asked != 0 {
		t.Errorf("got %s, %v; asked %d times", reason, err, user.asked)
	}
}

func TestAContextOverflowCondensesTheHistoryOnce(t *testing.T) {
	overflow := &llm.Error{Kind: llm.Context, Message: "too long", Window: 20_000}
	known := func(o *Options) { o.ContextWindow = 20_000 }
	work, long := calls(`execute_bash {"command":"seq 500"}`), strings.Repeat("long ", 10_000)
	m := &script{steps: []any{work, overflow, says("a summary"), says("Done.")}}
	s, _ := newSession(t, m, known)
	if reason, err := s.prompt(t, "1", "go"); reason != acp.EndTurn || err != nil {
		t.Fatalf("got %s, %v", reason, err)
	}
	if m.requests[2].System != summaryPrompt || !strings.Contains(m.requests[3].Messages[0].Text(), "a summary") {
		t.Errorf("the requests are %+v", m.requests)
	}
	for name, c := range map[string]struct {
		steps  []any
		prompt string
		want   string
	}{
		"second overflow": {[]any{work, overflow, says("a summary"), overflow}, "go", "context of 20000 tokens"},
		"empty summary":   {[]any{work, overflow, says("  ")}, "go", "no summary"},
		"long message":    {[]any{overflow}, long, "Send a shorter message"},
	} {
		m := &script{steps: append(c.steps, says("a summary"), says("Done."))}
		s, _ := newSession(t, m, known)
		_, err := s.prompt(t, "1", c.prompt)
		if kindOf(err) != string(llm.Context) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if reason, err := s.prompt(t, "2", "a short one"); reason != acp.EndTurn || err != nil {
			t.Errorf("%s: the next message: %s, %v", name, reason, err)
		}
	}
}

func TestTheContextWindowIsLearnedFromErrors(t *testing.T) {
	overflow := func(window int, tooLarge bool) *llm.Error {
		return &llm.Error{Kind: llm.Context, Message: "too long", Window: window, TooLarge: tooLarge}
	}
	for name, c := range map[string]struct {
		err  *llm.Error
		want int
	}{
		"named by the provider": {overflow(20_000, false), 20_000},
		"not named":             {overflow(0, false), 12_500},
		"a body too large":      {overflow(0, true), defaultWindow},
	} {
		m := &script{steps: []any{says("One."), c.err, says("Two."), says("Three.")}}
		s, _ := newSession(t, m)
		for _, text := range []string{strings.Repeat("long ", 9000), "go"} {
			if reason, err := s.prompt(t, text[:2], text); reason != acp.EndTurn || err != nil {
				t.Errorf("%s: %s, %v", name, reason, err)
			}
		}
		if got := s.window(); got < c.want*9/10 || got > c.want*11/10 {
			t.Errorf("%s: the window is %d", name, got)
		}
	}
}

func TestAFullContextEndsTheTurnIfCondensingIsOff(t *testing.T) {
	m := &script{}
	s, _ := newSession(t, m, func(o *Options) { o.Condense, o.ContextWindow = false, 100 })
	_, err := s.prompt(t, "1", strings.Repeat("long ", 100))
	if kindOf(err) != string(llm.Context) || len(m.requests) != 0 {
		t.Errorf("got %v after %d requests", err, len(m.requests))
	}
}

func TestRefusedReasoningIsRemoved(t *testing.T) {
	thinks := says("One.")
	thinks.Message.Parts = append([]llm.Part{{Thinking: &llm.Thinking{Text: "Hm.", Signature: "of another model"}}},
		thinks.Message.Parts...)
	refused := &llm.Error{Kind: llm.Provider, Message: "invalid signature", Refused: llm.RefusedHistory}
	m := &script{steps: []any{thinks, refused, says("Two."), refused}}
	s, c := newSession(t, m)
	for _, turn := range []string{"1", "2"} {
		if reason, err := s.prompt(t, turn, "go"); reason != acp.EndTurn || err != nil {
			t.Fatalf("got %s, %v", reason, err)
		}
	}
	if last := m.requests[2].Messages; len(last) != 3 || len(last[1].Parts) != 1 || last[1].Text() != "One." {
		t.Errorf("the model receives %+v", last)
	}
	if updates := strings.Join(c.updates, "\n"); strings.Count(updates, noticeThinking) != 1 {
		t.Errorf("the updates are\n%s", updates)
	}
	if _, err := s.prompt(t, "3", "go"); kindOf(err) != string(llm.Provider) || len(m.requests) != 4 {
		t.Errorf("nothing is left to repair: %v after %d requests", err, len(m.requests))
	}
}

func TestARecordingIsReplayedBeforeTheFirstRequest(t *testing.T) {
	recording, err := ReadRecording([]byte(`{"trajectory":[
		{"source":"user","action":"message","args":{"content":"make it"}},
		{"action":"think","args":{"thought":"hm"}},
		{"action":"change_agent_state","args":{"agent_state":"running"}},
		{"action":"write","args":{"path":"made","content":"text"}},
		{"action":"browse","args":{"url":"http://example"}}]}`))
	if err != nil || len(recording) != 4 {
		t.Fatalf("%d events: %v", len(recording), err)
	}
	m := &script{steps: []any{says("Done.")}}
	s, _ := newSession(t, m, func(o *Options) { o.Recording = recording })
	if reason, err := s.Prompt(t.Context(), acp.PromptParams{})(); reason != acp.EndTurn || err != nil {
		t.Fatalf("got %s, %v", reason, err)
	}
	if text, err := os.ReadFile(filepath.Join(s.state.cwd, "made")); string(text) != "text" || err != nil {
		t.Errorf("the file holds %q: %v", text, err)
	}
	history := ""
	for _, message := range s.state.history {
		history += message.Text() + "\n"
	}
	for _, want := range []string{"make it", "hm", "which this agent cannot replay"} {
		if !strings.Contains(history, want) {
			t.Errorf("%q is missing in\n%s", want, history)
		}
	}
	if len(m.requests) > 1 {
		t.Errorf("the model received %d requests", len(m.requests))
	}
}

func TestRecordedEventsBecomeToolCalls(t *testing.T) {
	for event, want := range map[string]string{
		`{"action":"run","args":{"command":"ls","is_input":"true","security_risk":"LOW"}}`: tools.BashName +
			` {"command":"ls","is_input":true,"security_risk":"LOW"}`,
		`{"action":"read","args":{"path":"a","view_range":[1,2]}}`: tools.EditorName +
			` {"command":"view","path":"a","view_range":[1,2]}`,
		`{"action":"edit","args":{"path":"a","content":"whole"}}`: tools.EditorName +
			` {"command":"create","file_text":"whole","path":"a"}`,
		`{"action":"edit","args":{"command":"insert","path":"a","new_str":"n","insert_line":3}}`: tools.EditorName +
			` {"command":"insert","insert_line":3,"new_str":"n","path":"a"}`,
		`{"action":"call_tool_mcp","args":{"name":"tracker_list","arguments":{"n":1}}}`: `tracker_list {"n":1}`,
		`{"action":"call_tool_mcp","args":{"name":"tracker_list","arguments":"x"}}`:     `tracker_list {}`,
		`{"action":"task_tracking","args":{"command":"plan","task_list":[]}}`: tools.TasksName +
			` {"command":"plan","task_list":[]}`,
		`{"action":"finish","args":{"final_thought":"over"}}`: " null",
	} {
		events, err := ReadRecording([]byte("[" + event + "]"))
		if err != nil {
			t.Fatal(err)
		}
		name, input := events[0].call()
		text, _ := json.Marshal(input)
		if got := name + " " + string(text); got != want {
			t.Errorf("%s: got %s, want %s", event, got, want)
		}
	}
	for _, bad := range []string{`{}`, `"text"`, `[1]`, `[{"action":"run","args":[]}]`} {
		if _, err := ReadRecording([]byte(bad)); err == nil {
			t.Errorf("%s is accepted as a recording", bad)
		}
	}
}
