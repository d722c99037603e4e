package session_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestTheMessageOfATurnIsShortenedForTheStatus(t *testing.T) {
	failed := func(reason, message string) *v1alpha1.ConversationTurn {
		return &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: reason, Message: message}
	}
	for name, c := range map[string]struct {
		turn *v1alpha1.ConversationTurn
		want string
	}{
		"a short message":     {failed("NoModel", "no model is set"), "no model is set"},
		"several lines":       {failed("TurnFailed", " one\n\ttwo\r\nthree "), "one two three"},
		"control characters":  {failed("TurnFailed", "a\x1b[31mb\x00c"), "a[31mbc"},
		"a long message":      {failed("TurnFailed", strings.Repeat("ä", 4000)), strings.Repeat("ä", 126) + "…"},
		"invalid UTF-8":       {failed("TurnFailed", "a\xffb"), "ab"},
		"no message":          {failed("TurnFailed", ""), ""},
		"a message of spaces": {failed("TurnFailed", strings.Repeat(" ", 9000)), ""},
	} {
		got := session.BoundTurn(c.turn)
		if got == nil || got.Message != c.want || got.Reason != c.turn.Reason || !utf8.ValidString(got.Message) ||
			len(got.Message) > v1alpha1.MaxTurnMessage {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
	for name, turn := range map[string]*v1alpha1.ConversationTurn{
		"nothing":               nil,
		"no state":              {Reason: "NoModel"},
		"an unknown state":      {State: "Fine", Reason: "NoModel"},
		"no reason":             {State: v1alpha1.TurnFailed},
		"a long reason":         failed(strings.Repeat("A", 65), ""),
		"a reason of two words": failed("No Model", ""),
		"a line break":          failed("NoModel\n", ""),
	} {
		if got := session.BoundTurn(turn); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
