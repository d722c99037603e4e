package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

func (c *chat) command(ctx context.Context, user *facadeUser, name, text string) error {
	state := session.StateRunning
	switch word, rest, _ := strings.Cut(text, " "); {
	case text == "/pause":
		state = session.StatePaused
	case text == "/resume":
	case text == "/approvals":
		c.showApprovals()
		return nil
	case word == "/revoke":
		return c.revoke(ctx, user, name, strings.TrimSpace(rest))
	default:
		return fmt.Errorf("unknown command %s: use /pause, /resume, /approvals or /revoke N, or put a space before it "+
			"to send a message", text)
	}
	return user.send(ctx, name, session.ActionChangeState, map[string]any{"agent_state": string(state)})
}

// isCommand reports whether a line starts with a slash and a word. A path, a // comment and a line
// that starts with a space are messages.
func isCommand(line string) bool {
	rest, slash := strings.CutPrefix(line, "/")
	word, _, _ := strings.Cut(strings.TrimRight(rest, "\r\n"), " ")
	return slash && word != "" && !strings.Contains(word, "/")
}
