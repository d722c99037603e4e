package driver

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// These errors refuse a user's answer to a question, or a user's request to revoke an approval.
const (
	ErrNothingAsked   Conflict = "no action is waiting for confirmation"
	ErrOtherQuestion  Conflict = "this question is no longer pending; nothing was approved or rejected"
	ErrAnswered       Conflict = "this question already has a different answer"
	ErrNotRepeatable  Conflict = "this approval cannot cover later actions, because Parley cannot compare the actions"
	ErrNoSuchApproval Conflict = "there is no such approval, or it was already revoked"
)

// StateRequest is a user's request to change the agent's state, for example to pause the agent or
// to confirm an action.
type StateRequest struct {
	State session.State
	// Question is the event ID of the question that the user answers. OpenHands clients do not send
	// the ID; their answers apply to the pending question.
	Question *int
	// Reason is the user's reason for a rejection. The agent receives it.
	Reason string
	// Remember extends the approval to all later actions that match the question's rule.
	Remember bool
}

func (r StateRequest) answers() bool {
	return r.State == session.StateConfirmed || r.State == session.StateRejected
}

func (r StateRequest) event(remembered string) session.Event {
	args := map[string]any{"agent_state": string(r.State), argThought: ""}
	if r.Question != nil {
		args[argQuestion] = *r.Question
	}
	if r.Reason != "" {
		args[argReason] = r.Reason
	}
	if remembered != "" {
		args[argRemember], args["remembered"] = true, remembered
	}
	return session.Event{Source: session.FromUser, Action: session.ActionChangeState,
		Message: "Requested state: " + string(r.State), Args: args}
}

const (
	argQuestion = "question"
	argReason   = "reason"
	argRemember = "remember"
	extraRule   = "rule"
)

// ChangeState records a user's request: confirm or reject the pending action, pause, stop the turn,
// or continue. It ignores a repeated request with the same key: the repetition must not answer a
// question that was asked after the first request.
func (d *Driver) ChangeState(r StateRequest, key string) error {
	return d.take(key, func() error {
		remembered := ""
		if r.answers() {
			known, err := d.history.checkAnswer(r)
			if known || err != nil {
				return err
			}
			if r.Remember {
				remembered = d.history.question.label
			}
		}
		return d.record(keyed(r.event(remembered), key))
	})
}

// checkAnswer reports whether the same answer is already recorded. It returns an error if the
// answer is not allowed.
func (h *history) checkAnswer(r StateRequest) (known bool, err error) {
	before, answered := h.answers[h.asked]
	switch {
	case h.asked == "":
		return false, ErrNothingAsked
	case r.Question != nil && *r.Question != h.question.id:
		return false, ErrOtherQuestion
	case answered && before.question == h.questions[h.asked]:
		if before != (answer{before.question, r.State, r.Reason, r.Remember}) {
			return false, ErrAnswered
		}
		return true, nil
	case r.Remember && h.question.rule == "":
		return false, ErrNotRepeatable
	}
	return false, nil
}

// Revoke revokes an approval of several actions. The approval is identified by the event ID of the
// user's answer.
func (d *Driver) Revoke(approval int, key string) error {
	return d.take(key, func() error {
		for _, id := range d.history.approvals {
			if id != approval {
				continue
			}
			event := keyed(session.Event{Source: session.FromUser, Action: session.ActionRevoke,
				Message: "Revoked an approval", Args: map[string]any{"approval": approval, argThought: ""}}, key)
			event.Meta = cmp.Or(event.Meta, &session.EventMeta{})
			event.Meta.Revokes = &approval
			return d.record(event)
		}
		return ErrNoSuchApproval
	})
}

// ruleOf returns the rule under which a user may approve all similar calls, and a description of
// these calls. The rule is empty if the input is masked, missing or too long, because such calls
// cannot be compared.
func (d *Driver) ruleOf(c *call) (rule, label string) {
	switch c.ToolKind {
	case "edit":
		if paths := c.paths(); len(paths) > 0 && !slices.ContainsFunc(paths, d.unusualFile) {
			return "edit", "all edits of files in the workspace"
		}
	case kindExecute, "delete", "move":
	default:
		if name := cmp.Or(c.Name, c.field("tool")); name != "" {
			return "tool:" + name, "all calls of the tool " + c.line(name)
		}
	}
	if raw := string(c.RawInput); !hasValue(c.RawInput) || c.mask(raw) != raw || len(raw) > maxText {
		return "", ""
	}
	if c.ToolKind == kindExecute {
		return "exact:" + c.digest(), "this exact command"
	}
	return "exact:" + c.digest(), "exactly this action"
}

// unusualFile reports whether a path is outside the workspace, or in a directory whose files may
// contain commands: .git, or the runtime's own directory. It follows the current symbolic links.
// Paths with ".." or "~" are unusual, because agents resolve them differently.
func (d *Driver) unusualFile(path string) bool {
	if strings.HasPrefix(path, "~") || slices.Contains(strings.Split(path, "/"), "..") {
		return true
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(d.Dir, path)
	}
	root, err := filepath.EvalSymlinks(d.Dir)
	file, unknown := resolved(path)
	if err != nil || unknown != nil {
		return true
	}
	inside, err := filepath.Rel(root, file)
	names := strings.Split(inside, "/")
	return err != nil || !filepath.IsLocal(inside) || slices.Contains(names, ".git") ||
		slices.Contains(names, workspace.RecordsDir)
}

// resolved returns a path without symbolic links. The path need not exist, but a link without a
// target is an error.
func resolved(path string) (string, error) {
	file, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return file, err
	}
	if _, exists := os.Lstat(path); exists == nil {
		return "", err
	}
	dir, err := resolved(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}
