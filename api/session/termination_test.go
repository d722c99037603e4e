package session_test

import (
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestATerminationMessageRoundTrips(t *testing.T) {
	want := session.Termination{Reason: v1alpha1.ReasonFailed, Message: "the agent exited with status 3"}
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := session.ParseTermination(string(text)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestTheLongestResultFitsIntoATerminationMessage(t *testing.T) {
	result := v1alpha1.ConversationResult{
		Commit: strings.Repeat("a", 64), Branch: strings.Repeat("b", 255), FilesChanged: 1e9, InputTokens: 1e12,
		OutputTokens: 1e12, Cost: "999999999.999999999999", PullRequest: "https://" + strings.Repeat("p", 500),
	}
	for name, text := range map[string]string{
		"letters": strings.Repeat("x", 5000), "characters of two bytes": strings.Repeat("é", 5000),
		"short escapes": strings.Repeat(`"`, 5000), "characters of HTML": strings.Repeat("<", 5000),
		"long escapes": strings.Repeat("\u2028", 5000), "control characters": strings.Repeat("\x01", 5000),
		"invalid bytes": strings.Repeat("\xff", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			given := result
			given.Summary = text
			encoded, err := session.Termination{Reason: v1alpha1.ReasonCompleted, Message: text, Result: &given}.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if len(encoded) > 4096 {
				t.Errorf("it has %d bytes; a kubelet keeps 4096", len(encoded))
			}
			read, said := session.ParseTermination(string(encoded))
			if !said || read.Result == nil || read.Result.Commit != result.Commit || read.Result.Branch != result.Branch ||
				read.Result.Cost != result.Cost || read.Result.PullRequest != result.PullRequest {
				t.Errorf("got %+v", read)
			}
			if !utf8.ValidString(read.Result.Summary) || !strings.HasPrefix(text, read.Result.Summary) {
				t.Errorf("the summary is %q", read.Result.Summary)
			}
			if given.Summary != text {
				t.Error("the caller's own result was changed")
			}
		})
	}
}

func TestInvalidResultFieldsAreDropped(t *testing.T) {
	for written, want := range map[string]*v1alpha1.ConversationResult{
		`{"summary":"done","commit":"5f1c0de","branch":"main","filesChanged":3,"inputTokens":10,"outputTokens":2,` +
			`"cost":"0.25"}`: {
			Summary: "done", Commit: "5f1c0de", Branch: "main", FilesChanged: 3, InputTokens: 10, OutputTokens: 2, Cost: "0.25",
		},
		`{"commit":"HEAD","branch":"a\u0007b","filesChanged":-1,"inputTokens":-5,"outputTokens":2000000000000,` +
			`"cost":"-1"}`: nil,
		`{"summary":"a\u001b[31mred\nline"}`: {Summary: "a[31mred\nline"},
		`{"cost":"0.123456789012345678"}`:    {Cost: "0.123456789012"},
		`{"cost":"1234567890"}`:              nil,
		`{"pullRequest":"https://git.example.com/a/b/pulls/7"}`: {
			PullRequest: "https://git.example.com/a/b/pulls/7",
		},
		`{"pullRequest":"javascript:alert(1)"}`:         nil,
		`{"pullRequest":"https://a b"}`:                 nil,
		`{"pullRequest":"https://a/\u001b[31m"}`:        nil,
		`{"summary":"x","cost":"1e3"}`:                  {Summary: "x"},
		`{"branch":"` + strings.Repeat("b", 256) + `"}`: nil,
		`{"inputTokens":"many"}`:                        nil,
		`["no object"]`:                                 nil,
		`null`:                                          nil,
		`{}`:                                            nil,
	} {
		got, said := session.ParseTermination(`{"reason":"Completed","message":"m","result":` + written + `}`)
		if !said || got.Message != "m" || !reflect.DeepEqual(got.Result, want) {
			t.Errorf("%s: got %+v with %+v", written, got, got.Result)
		}
	}
}

func TestALongTerminationMessageIsTruncatedBetweenCharacters(t *testing.T) {
	text, err := session.Termination{Reason: v1alpha1.ReasonFailed, Message: "x" + strings.Repeat("é", 4000)}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 4096 {
		t.Errorf("it has %d bytes; a kubelet keeps 4096", len(text))
	}
	if got, _ := session.ParseTermination(string(text)); !utf8.ValidString(got.Message) ||
		strings.ContainsRune(got.Message, utf8.RuneError) || len(got.Message) < 1000 {
		t.Errorf("got %q", got.Message)
	}
}

func TestAnUnknownTerminationMessageGetsTheReasonCompleted(t *testing.T) {
	for _, message := range []string{"", "bye", `{"reason":"Running","message":"secret"}`, `{"summary":"secret"}`,
		`{"result":{"summary":"secret"}}`} {
		if got, _ := session.ParseTermination(message); !reflect.DeepEqual(got,
			session.Termination{Reason: v1alpha1.ReasonCompleted}) {
			t.Errorf("%q: got %+v", message, got)
		}
	}
}
