package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// watch opens a stream with previews. until() reads the stream until a preview meets the
// condition.
func (p *pod) watch(t *testing.T) (until func(condition string, met func(session.Preview) bool),
	previews *strings.Builder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+p.address+session.StreamPath+"?previews=true", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+secretValues[session.KeyFile])
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	lines, previews := bufio.NewScanner(response.Body), &strings.Builder{}
	lines.Buffer(nil, 1<<20)
	return func(condition string, met func(session.Preview) bool) {
		t.Helper()
		isPreview := false
		for lines.Scan() {
			data, isData := strings.CutPrefix(lines.Text(), "data: ")
			if isData && isPreview {
				previews.WriteString(data + "\n")
				var preview session.Preview
				if err := json.Unmarshal([]byte(data), &preview); err != nil {
					t.Fatal(err)
				}
				if met(preview) {
					return
				}
			}
			isPreview = lines.Text() == "event: preview"
		}
		t.Fatalf("the stream ended before %s: %s", condition, previews)
	}, previews
}

// Previews show texts before the journal records these texts. The events are the same as without
// previews.
func TestTheShippedAgentPreviewsCommandOutputAndItsAnswers(t *testing.T) {
	secret := secretValues[session.LLMAPIKeyFile]
	half := len(secret) / 2
	pause := make(chan struct{})
	steps := func(pause chan struct{}) []scriptedmodel.Step {
		return []scriptedmodel.Step{
			calls(bash("printf 'one\n" + secret[:half] + "'; until test -e first; do sleep 0.01; done; printf '" +
				secret[half:] + " two\n'; until test -e last; do sleep 0.01; done")),
			{Text: "The first half of this answer is long enough to be seen before its second half.", Pause: pause},
		}
	}
	p, _ := scripted(t, nil, steps(pause)...)
	p.start(t)
	p.waitReady(t)
	until, previews := p.watch(t)
	until("output", func(preview session.Preview) bool {
		return len(preview.Outputs) == 1 && preview.Outputs[0].Content == "one\n"
	})
	write(t, filepath.Join(p.workspace, "first"), "")
	until("more output", func(preview session.Preview) bool {
		return len(preview.Outputs) == 1 && preview.Outputs[0].Content == "one\n*** two\n"
	})
	for _, event := range p.eventLines(t) {
		if strings.Contains(event, "*** two") {
			t.Errorf("recorded before the command has ended: %s", event)
		}
	}
	write(t, filepath.Join(p.workspace, "last"), "")
	until("the answer", func(preview session.Preview) bool {
		return strings.HasPrefix(preview.Message, "The first half") && !strings.HasSuffix(preview.Message, "second half.")
	})
	close(pause)
	until("the end", func(preview session.Preview) bool { return preview.Message == "" })
	eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
	if shown := previews.String(); strings.Contains(shown, secret[:half]) || strings.Contains(shown, secret[half:]) {
		t.Errorf("a part of a secret is shown: %s", shown)
	}

	unwatched, _ := scripted(t, nil, steps(pause)...)
	for _, name := range []string{"first", "last"} {
		write(t, filepath.Join(unwatched.workspace, name), "")
	}
	unwatched.start(t)
	eventually(t, "the turn is over", func() bool { return over(unwatched.eventLines(t)) })
	got, want := strings.Join(p.eventLines(t), "\n"), strings.Join(unwatched.eventLines(t), "\n")
	if got != want {
		t.Errorf("watched, the events are\n%s\n\nunwatched\n%s", got, want)
	}
}
