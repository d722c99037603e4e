package session_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestATerminationIsReadAsItWasWritten(t *testing.T) {
	want := session.Termination{Reason: v1alpha1.ReasonFailed, Message: "the agent ended with status 3"}
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := session.ParseTermination(string(text)); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestALongTerminationIsCutBetweenCharacters(t *testing.T) {
	text, err := session.Termination{Reason: v1alpha1.ReasonFailed, Message: "x" + strings.Repeat("é", 4000)}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 4096 {
		t.Errorf("it has %d bytes; a kubelet keeps 4096", len(text))
	}
	if got, _ := session.ParseTermination(string(text)); !utf8.ValidString(got.Message) || strings.ContainsRune(got.Message, utf8.RuneError) || len(got.Message) < 1000 {
		t.Errorf("got %q", got.Message)
	}
}

func TestAnythingElseInATerminationMessageMeansCompleted(t *testing.T) {
	for _, message := range []string{"", "bye", `{"reason":"Running","message":"secret"}`} {
		if got, _ := session.ParseTermination(message); got != (session.Termination{Reason: v1alpha1.ReasonCompleted}) {
			t.Errorf("%q: got %+v", message, got)
		}
	}
}
