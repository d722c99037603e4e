package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-dev/parley/api/session"
)

// maxReason is the maximum length of the reason for a rejection, in characters.
const maxReason = 2000

type question struct {
	id int
	// remember is a description of similar actions that the user may approve together with this
	// action; empty if there are none.
	remember string
	// answerable is the earliest time at which an input line can answer the question.
	answerable time.Time
}

// approval is a user's approval of an action and of all similar actions. The agent then runs such
// actions without a question.
type approval struct {
	id   int
	text string
}

// askConfirmation asks the user to confirm a tool call. It first prints the whole call, unless the
// last output already shows the whole call.
func (c *chat) askConfirmation(e *session.Event) {
	id := ""
	if e.ToolCall != nil {
		id = e.ToolCall.ID
	}
	switch call, known := c.openCalls[id]; {
	case !known:
		fmt.Fprintln(c.Out, "! The agent did not describe this action. Reject it if in doubt.")
	case id != c.lastCall, strings.TrimSpace(call.line) != strings.TrimSpace(call.whole):
		fmt.Fprintln(c.Out, call.whole)
	}
	if incomplete, _ := e.Extras["incomplete"].(bool); incomplete {
		fmt.Fprintln(c.Out, "! This action is too large to show in full. Reject it if in doubt.")
	}
	remember, _ := e.Extras["remember"].(string)
	prompt := "? Run this action? y, n or n REASON"
	if remember != "" {
		prompt += "; type \"a\" to approve " + indented(remember) + " in this session"
	}
	answerable := time.Now()
	fmt.Fprintln(c.Out, prompt)
	if discardTypedAhead(c.In) {
		answerable = time.Now().Add(settle)
	}
	c.question = &question{e.ID, remember, answerable}
}

func (c *chat) answer(ctx context.Context, user *facadeUser, name string, id int, text string) error {
	asked := question{id: noQuestion}
	c.locked(func() {
		if c.question != nil {
			asked = *c.question
		}
	})
	if asked.id != id {
		return errors.New("this question is no longer pending")
	}
	args := map[string]any{"question": id}
	switch word, reason, _ := strings.Cut(text, " "); strings.ToLower(strings.TrimRight(word, ",:;.")) {
	case "y", "yes":
		if reason != "" {
			return errors.New(answers(asked))
		}
		args["agent_state"] = string(session.StateConfirmed)
	case "a", "all":
		if reason != "" || asked.remember == "" {
			return errors.New(answers(asked))
		}
		args["agent_state"], args["remember"] = string(session.StateConfirmed), true
	case "n", "no":
		args["agent_state"] = string(session.StateRejected)
		if reason = strings.TrimSpace(reason); reason != "" {
			args["reason"] = reason
		}
		if utf8.RuneCountInString(reason) > maxReason {
			return fmt.Errorf("the reason is longer than %d characters", maxReason)
		}
	default:
		return errors.New(answers(asked))
	}
	err := user.send(ctx, name, session.ActionChangeState, args)
	if refused, is := errors.AsType[*refusedError](err); is && refused.code == http.StatusConflict {
		refused.detail = cmp.Or(refused.detail, "this question is no longer pending")
	}
	if err == nil {
		c.locked(func() {
			if c.question != nil && c.question.id == id {
				c.question = nil
			}
		})
	}
	return err
}

func answers(asked question) string {
	text := "the agent waits for confirmation: answer y, n or n REASON"
	if asked.remember != "" {
		text += ", or \"a\" to approve " + asked.remember
	}
	return text
}

// trackApprovals records and prints each approval that an event grants or revokes.
func (c *chat) trackApprovals(e *session.Event) {
	if e.Source != session.FromUser {
		return
	}
	switch e.Action {
	case session.ActionChangeState:
		text, _ := e.Args["remembered"].(string)
		if text == "" {
			return
		}
		c.approvals = append(c.approvals, approval{e.ID, text})
		fmt.Fprintf(c.Out, "! approved in this session: %s; /revoke %d ends the approval\n", indented(text), e.ID)
	case session.ActionRevoke:
		id, _ := e.Args["approval"].(float64)
		c.approvals = slices.DeleteFunc(c.approvals, func(a approval) bool {
			if a.id == int(id) {
				fmt.Fprintf(c.Out, "! no longer approved: %s\n", indented(a.text))
			}
			return a.id == int(id)
		})
	}
}

func (c *chat) showApprovals() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.approvals) == 0 {
		fmt.Fprintln(c.Out, "! nothing is approved in advance")
	}
	for _, a := range c.approvals {
		fmt.Fprintf(c.Out, "! %d: %s\n", a.id, indented(a.text))
	}
}

func (c *chat) revoke(ctx context.Context, user *facadeUser, name, number string) error {
	id, err := strconv.Atoi(number)
	known := false
	c.locked(func() { known = slices.ContainsFunc(c.approvals, func(a approval) bool { return a.id == id }) })
	if err != nil || !known {
		return fmt.Errorf("no approval has the number %q: /approvals lists the numbers", number)
	}
	return user.send(ctx, name, session.ActionRevoke, map[string]any{"approval": id})
}
