package scriptedmodel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// events collects the server-sent events of an answer before they are sent, so that the server can
// pause or break off in the middle of the answer.
type events struct {
	w   http.ResponseWriter
	all [][]byte
}

func newEvents(w http.ResponseWriter) *events {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	return &events{w: w}
}

// event adds an event. The name is optional, because only Anthropic's API and the responses API
// name their events.
func (e *events) event(name string, data any) {
	var b bytes.Buffer
	if name != "" {
		fmt.Fprintf(&b, "event: %s\n", name)
	}
	encoded, err := json.Marshal(data)
	if err != nil {
		panic(err) // a mistake in this package
	}
	fmt.Fprintf(&b, "data: %s\n\n", encoded)
	e.all = append(e.all, b.Bytes())
}

func (e *events) raw(line string) { e.all = append(e.all, []byte(line+"\n\n")) }

func (e *events) flush() {
	for _, event := range e.all {
		if _, err := e.w.Write(event); err != nil {
			return
		}
		_ = http.NewResponseController(e.w).Flush()
	}
}

// breakOff sends the first half of the events, and then drops the connection.
func (e *events) breakOff() {
	e.all = e.all[:(len(e.all)+1)/2]
	e.flush()
	panic(http.ErrAbortHandler)
}

// pause sends the first half of the events, and then waits until the channel is closed.
func (e *events) pause(ctx context.Context, until <-chan struct{}) {
	half := (len(e.all) + 1) / 2
	rest := e.all[half:]
	e.all = e.all[:half]
	e.flush()
	e.all = rest
	select {
	case <-until:
	case <-ctx.Done():
	}
}

// pieces splits a text into parts, which become separate events.
func pieces(text string) []string {
	runes := []rune(text)
	var cut []string
	for len(runes) > 0 {
		n := min(len(runes), max(1, min(40, (len(runes)+1)/2)))
		cut = append(cut, string(runes[:n]))
		runes = runes[n:]
	}
	return cut
}
