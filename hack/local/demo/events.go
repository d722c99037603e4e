package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/parley-dev/parley/api/rest"

	"github.com/parley-dev/parley/api/session"
)

// follow prints the session's events until the agent's turn ends, and returns the final state.
func (u *user) follow(ctx context.Context, id string) (session.State, error) {
	path := "/api/conversations/" + id + "/events/stream"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.facade+path, nil)
	if err != nil {
		return "", err
	}
	request.Header.Set(rest.KeyHeader, u.key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: %s", path, response.Status)
	}
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return "", fmt.Errorf("the event stream ended: %w", err)
		}
		data, found := strings.CutPrefix(line, "data: ")
		if !found {
			continue
		}
		event, err := session.ParseEvent([]byte(data))
		if err != nil {
			return "", err
		}
		show(&event)
		switch state := event.StateOf(); state {
		case session.StateAwaiting, session.StateFinished, session.StateError:
			return state, nil
		}
	}
}

func show(e *session.Event) {
	text := ""
	switch {
	case e.Observation == session.ObservedState:
		text = string(e.StateOf())
		if reason, _ := e.Extras["reason"].(string); reason != "" {
			text += ": " + reason
		}
	case e.Content != nil:
		text = *e.Content
	case e.Action == session.ActionRun:
		text, _ = e.Args["command"].(string)
	case e.Action == session.ActionMessage:
		text = e.Text()
	case e.Action != "":
		text = e.Message
	}
	kind := e.Action + e.Observation
	if e.Observation != "" && e.Observation != session.ObservedState {
		kind = "-> " + kind
	}
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+strings.Repeat(" ", 42))
	fmt.Printf("%3d  %-11s  %-22s  %s\n", e.ID, e.Source, kind, text)
}
