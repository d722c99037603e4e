package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/parley-dev/parley/api/session"
)

// FuzzChat prints arbitrary streams of a session. The output contains no control characters except
// line breaks and tabs.
func FuzzChat(f *testing.F) {
	for _, seed := range []string{
		`data: {"id":0,"source":"user","action":"message","args":{"content":"hi \u001b[2J"}}` + "\n\n",
		`data: {"id":1,"action":"run","args":{"command":"ls"},"tool_call_metadata":{"tool_call_id":"c"}}` + "\n\n" +
			`data: {"id":2,"observation":"run","content":"\u001b]0;x\u0007out\r","cause":1}` + "\n\n",
		"event: preview\n" + `data: {"cause":1,"kind":"output","content":"x\n"}` + "\n\n",
		`data: {"id":0,"observation":"agent_state_changed","extras":{"agent_state":"awaiting_user_confirmation"}}` + "\n\n",
		`data: {"id":0}` + "\n\n" + `data: {"id":0}` + "\n\n", "data: {\n", "data: null\n", "\n",
	} {
		f.Add([]byte(seed))
	}
	var text atomic.Pointer[[]byte]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(*text.Load())
	}))
	f.Cleanup(server.Close)
	f.Fuzz(func(t *testing.T, stream []byte) {
		text.Store(&stream)
		var out bytes.Buffer
		c := &chat{IOStreams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: io.Discard},
			historyShown: make(chan struct{}), lastShown: -1, openCalls: map[string]openCall{}, outputs: map[int]*printed{}}
		user, last := &facadeUser{url: server.URL, preview: c.preview}, -1
		_, _ = user.stream(t.Context(), "talk", &last, func(e *session.Event) bool { return c.show(e) })
		if at := strings.IndexFunc(out.String(), func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }); at >= 0 {
			t.Errorf("printed a control character: %q", out.String()[at:])
		}
		var patch bytes.Buffer
		if err := showPatch(&patch, bytes.NewReader(stream)); err != nil {
			t.Error(err)
		}
	})
}
