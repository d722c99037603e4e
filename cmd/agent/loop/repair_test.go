package loop

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
)

func picture(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := png.Encode(&out, image.NewGray(image.Rect(0, 0, 9, 9))); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func imagesIn(messages []llm.Message) (n int) {
	for _, message := range messages {
		for _, part := range message.Parts {
			if part.Image != nil {
				n++
			}
		}
	}
	return n
}

func TestEarlierImagesAreRemovedFromATooLargeRequest(t *testing.T) {
	block := acp.Content{Type: "image", Data: base64.StdEncoding.EncodeToString(picture(t))}
	tooLarge := &llm.Error{Kind: llm.Context, Message: "too large", TooLarge: true}
	m := &script{steps: []any{says("One."), tooLarge, says("Two."), tooLarge, says("Three."), tooLarge, says("Four.")}}
	s, c := newSession(t, m, func(o *Options) { o.Condense = false })
	for _, turn := range []string{"1", "2", "3", "4"} {
		reason, err := s.Prompt(t.Context(), acp.PromptParams{Prompt: []acp.Content{*acp.Text("look"), block},
			Meta: acp.Meta{acp.MetaTurn: turn}})()
		if reason != acp.EndTurn || err != nil {
			t.Fatalf("turn %s: got %s, %v", turn, reason, err)
		}
	}
	for i, want := range []int{1, 2, 1, 2, 1, 2, 1} {
		if got := imagesIn(m.requests[i].Messages); got != want {
			t.Errorf("request %d has %d images, want %d", i, got, want)
		}
	}
	if text := m.requests[2].Messages[0].Text(); !strings.Contains(text, "look") || !strings.Contains(text, olderImage) {
		t.Errorf("the first message is %q", text)
	}
	if n := strings.Count(strings.Join(c.updates, "\n"), noticeOlder); n != 3 {
		t.Errorf("the user was told %d times", n)
	}
	history := s.state.history
	s.Close()
	loaded, err := Load(t.Context(), c, s.options, acp.SessionParams{Cwd: s.state.cwd, SessionID: s.ID()}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	if !reflect.DeepEqual(loaded.state.history, history) {
		t.Errorf("the loaded history is %+v", loaded.state.history)
	}
}

// The agent removes only images from before the user's latest message. In turn 1, the image is
// after that message, so the agent cannot remove it, and the turn fails. In turn 2, the image is
// before the latest message, so the agent removes it.
func TestTheNextTurnRemovesTheImagesThatMadeATurnFail(t *testing.T) {
	tooLarge := &llm.Error{Kind: llm.Context, Message: "too large", TooLarge: true}
	m := &script{steps: []any{calls(`str_replace_editor {"command":"view","path":"p.png"}`), tooLarge, tooLarge,
		says("Done.")}}
	s, _ := newSession(t, m, func(o *Options) { o.Condense = false })
	if err := os.WriteFile(filepath.Join(s.state.cwd, "p.png"), picture(t), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.prompt(t, "1", "look"); kindOf(err) != string(llm.Context) {
		t.Fatalf("got %v", err)
	}
	if reason, err := s.prompt(t, "2", "go on"); reason != acp.EndTurn || err != nil {
		t.Fatalf("got %s, %v", reason, err)
	}
	if got := results(m.requests[3].Messages); len(got) != 1 || !strings.Contains(got[0], olderImage) {
		t.Errorf("the results are %q", got)
	}
}
