package loop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

func user(text string) llm.Message {
	return llm.Message{Role: llm.User, Parts: []llm.Part{{Text: text}}}
}

func called(ids ...string) llm.Message {
	message := llm.Message{Role: llm.Assistant}
	for _, id := range ids {
		message.Parts = append(message.Parts, llm.Part{Call: &llm.Call{ID: id}})
	}
	return message
}

func result(id string) turnlog.Record {
	return turnlog.Record{Kind: turnlog.KindResult, CallID: id, Result: &llm.Result{CallID: id, Text: "of " + id}}
}

func stateAfter(records ...turnlog.Record) *state {
	s := newState()
	for _, record := range records {
		s.apply(record)
	}
	return s
}

func prompted(text string) turnlog.Record {
	message := user(text)
	return turnlog.Record{Kind: turnlog.KindPrompt, Message: &message}
}

func answered(message llm.Message) turnlog.Record {
	return turnlog.Record{Kind: turnlog.KindAnswer, Answer: &llm.Answer{Message: message}}
}

func ids(calls []*llm.Call) string {
	var list []string
	for _, call := range calls {
		list = append(list, call.ID)
	}
	return strings.Join(list, " ")
}

func TestCallsArePendingUntilTheyHaveAResult(t *testing.T) {
	s := stateAfter(prompted("go"), answered(called("a", "b", "c")))
	for id, want := range []string{"a b c", "a c", "c"} {
		if got := ids(s.pending()); got != want {
			t.Errorf("after %d results %q are pending, want %q", id, got, want)
		}
		s.apply(result([]string{"b", "a", "c"}[id]))
	}
	if len(s.pending()) > 0 || s.answered() {
		t.Error("calls with results are pending, or the last message counts as an answer")
	}
	if n := len(s.history); n != 3 || len(s.history[2].Parts) != 3 {
		t.Errorf("the results of one answer are in %d messages", n-2)
	}
}

func TestCallsHaveValidNamesAndUniqueIDs(t *testing.T) {
	s := stateAfter(answered(called("call_0", "call_1")))
	next := called("call_0", "call_0", "", "other")
	next.Parts[0].Call.Name = "functions.execute_bash"
	s.makeCallsValid(next)
	if got := ids(next.Calls()); got != "call_0_2 call_0_3 call_2 other" {
		t.Errorf("got %q", got)
	}
	if got := next.Parts[0].Call.Name; got != "functions_execute_bash" {
		t.Errorf("the name is %q", got)
	}
}

func TestCondensingKeepsTheFirstAndTheLatestMessage(t *testing.T) {
	records := []turnlog.Record{prompted("first"), answered(called("a")), result("a"), prompted("latest"),
		answered(called("b")), result("b")}
	for keep, want := range map[int]string{
		0: "first latest summary", 1: "first latest summary | ", 2: "first latest summary |  | ",
		3: "first summary | latest |  | ",
	} {
		s := stateAfter(records...)
		s.apply(turnlog.Record{Kind: turnlog.KindCondensed, Summary: "summary", Keep: keep})
		var texts []string
		for _, message := range s.history {
			var parts []string
			for _, part := range message.Parts {
				parts = append(parts, strings.TrimPrefix(part.Text, summaryHeading))
			}
			texts = append(texts, strings.TrimSpace(strings.Join(parts, " ")))
		}
		if got := strings.Join(texts, " | "); got != want {
			t.Errorf("keep %d: got %q, want %q", keep, got, want)
		}
		if s.history[s.latestAt].Text() == "" || s.used != 0 {
			t.Errorf("keep %d: the latest message is number %d, %d tokens are used", keep, s.latestAt, s.used)
		}
	}
}

func TestLaterCondensationsKeepTheLatestMessage(t *testing.T) {
	first := strings.Repeat("first ", 100)
	records := []turnlog.Record{prompted(first), answered(called("a")), result("a"), prompted("latest")}
	for i := range 5 {
		id := fmt.Sprint("b", i)
		records = append(records, answered(called(id)), result(id),
			turnlog.Record{Kind: turnlog.KindCondensed, Summary: fmt.Sprint("summary ", i), Keep: i % 3, MaxFirst: 60})
	}
	for n := 7; n <= len(records); n += 3 {
		s := stateAfter(records[:n]...)
		text := ""
		for _, message := range s.history {
			text += message.Text() + "\n"
		}
		if strings.Count(text, "latest") != 1 || len(text) > 400 || !strings.Contains(text, "first") ||
			!strings.Contains(text, fmt.Sprint("summary ", (n-7)/3)) {
			t.Errorf("after %d records the history is %q", n, text)
		}
	}
}

func TestCondensingKeepsOnlyCompleteExchanges(t *testing.T) {
	var history []llm.Message
	for i := range 8 {
		history = append(history, called(fmt.Sprint(i)),
			llm.Message{Role: llm.User, Parts: []llm.Part{{Result: &llm.Result{Text: strings.Repeat("x", 300)}}}})
	}
	history = append([]llm.Message{user("go")}, history...)
	for bound, want := range map[int]int{10_000: 6, 250: 4, 120: 2, 50: 0} {
		if got := messagesToKeep(history, bound); got != want {
			t.Errorf("within %d tokens %d messages are kept, want %d", bound, got, want)
		}
	}
	if got := messagesToKeep(history[:3], 10_000); got != 0 {
		t.Errorf("%d messages of a single exchange are kept", got)
	}
}

func TestAContextIsFullAbove80Percent(t *testing.T) {
	s := &Session{state: newState(), options: Options{ContextWindow: 1000}}
	s.state.used, s.state.usedAt = 700, 1
	s.state.history = []llm.Message{user(strings.Repeat("x", 9000)), user(strings.Repeat("x", 300))}
	if s.contextFull(t.Context()) {
		t.Error("700 reported and 100 estimated tokens of 1000 count as full")
	}
	s.state.history[1].Parts[0].Text += "xxx"
	if !s.contextFull(t.Context()) {
		t.Error("801 tokens of 1000 do not count as full")
	}
}

func TestInstructionsComeAfterAllToolResults(t *testing.T) {
	s := stateAfter(prompted("go"), answered(called("a", "b")))
	first := result("a")
	first.Learned = []turnlog.Knowledge{{Name: "sub/AGENTS.md", Text: "rules"}}
	s.apply(first)
	s.apply(result("b"))
	parts := s.history[2].Parts
	if len(parts) != 3 || parts[1].Result == nil || parts[2].Text != "rules" {
		t.Errorf("the message with the results is %+v", parts)
	}
}

func TestInstructionsAreSentAgainIfCondensingRemovedThem(t *testing.T) {
	learn := func(r turnlog.Record, name string) turnlog.Record {
		r.Learned = []turnlog.Knowledge{{Name: name, Text: "rules of " + name}}
		return r
	}
	s := stateAfter(learn(prompted("first"), "first.md"), answered(called("a")), learn(result("a"), "a/AGENTS.md"),
		learn(prompted("latest"), "latest.md"), answered(called("b")), learn(result("b"), "b/AGENTS.md"),
		turnlog.Record{Kind: turnlog.KindCondensed, Summary: "summary", Keep: 2, MaxFirst: 1000})
	if got := slices.Sorted(maps.Keys(s.known)); !slices.Equal(got, []string{"b/AGENTS.md", "latest.md"}) {
		t.Errorf("the model still has the instructions %q", got)
	}
}
