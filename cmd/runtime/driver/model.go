package driver

import (
	"context"

	"github.com/parley-dev/parley/api/session"
)

// extraModel holds the revision of the model in the notice about a changed model.
const extraModel = "model_revision"

// ModelChange is a change of the model between two turns.
type ModelChange struct {
	// Input and Env are the agent's new input and environment. Restart is set if a running agent must
	// be restarted to receive them.
	Input   session.AgentInput
	Env     []string
	Restart bool
	// Notice is shown to the user once per Revision, even if a later attempt applies the change again.
	Notice, Revision string
}

// refreshModel applies a change of the model before a turn.
func (d *Driver) refreshModel(ctx context.Context) {
	if d.Refresh == nil {
		return
	}
	change := d.Refresh(ctx)
	if change == nil {
		return
	}
	d.Input, d.Env = change.Input, change.Env
	if change.Restart && d.agent != nil {
		d.agent.stop() // ensureAgent starts it again
	}
	if d.look(func(h *history) bool { return h.model == change.Revision }) {
		return
	}
	notice := d.texts.observed(session.ObservedNotice, change.Notice)
	notice.Extras = map[string]any{extraModel: change.Revision}
	_ = d.add(notice) // Run checks d.broken
}
