package session_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// FuzzTermination reads any termination message, because an image with its own entry point may
// write any text.
func FuzzTermination(f *testing.F) {
	for _, seed := range []string{
		`{"reason":"Completed","message":"done","result":{"commit":"abcdef1","cost":"0.5","changedFiles":3}}`,
		`{"reason":"Failed","message":"` + strings.Repeat("x", 5000) + `"}`, `{"reason":"OOMKilled"}`,
		`{"result":{"cost":1e9}}`,
		`{"reason":"Idle","result":5}`, `null`, ``, "\x1b[2J",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message string) {
		got, said := session.ParseTermination(message)
		if !said && (got.Message != "" || got.Result != nil) {
			t.Errorf("an unknown text gives %+v", got)
		}
		if written, err := json.Marshal(got); err != nil || len(written) > 16<<10 {
			t.Errorf("the status would have %d bytes: %v", len(written), err)
		}
		if why := session.WhyEnded(message); why != "" && why != session.OOMKilled && why != session.Unresponsive {
			t.Errorf("the reason is %q", why)
		}
	})
}

// FuzzTurn reads arbitrary reports about a turn. A session whose image replaces Parley's runtime may
// send any text.
func FuzzTurn(f *testing.F) {
	for _, seed := range [][3]string{
		{string(v1alpha1.TurnFailed), "TurnFailed", "the model answers 401"},
		{string(v1alpha1.TurnNeedsApproval), "ApprovalPending", strings.Repeat("é\n", 500)},
		{"", "", ""}, {string(v1alpha1.TurnFailed), "no word", "\x1b[2J\xff"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, state, reason, message string) {
		turn := session.BoundTurn(&v1alpha1.ConversationTurn{State: v1alpha1.TurnState(state), Reason: reason,
			Message: message})
		if turn != nil && (len(turn.Message) > v1alpha1.MaxTurnMessage || strings.ContainsAny(turn.Message, "\n\r\x1b") ||
			!utf8.ValidString(turn.Message)) {
			t.Errorf("the message is %q", turn.Message)
		}
	})
}

func FuzzEvent(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"source":"user","action":"message","args":{"content":"x"}}`,
		`{"observation":"agent_state_changed","extras":{"agent_state":5}}`, `{"args":null}`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, line []byte) {
		event, err := session.ParseEvent(line)
		if err == nil {
			_, _, _ = event.StateOf(), event.IsUserMessage(), event.Text()
		}
		_ = json.Unmarshal(line, &session.Ending{})
	})
}
