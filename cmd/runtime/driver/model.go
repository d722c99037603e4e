package driver

import (
	"context"

	"github.com/parley-dev/parley/api/session"
)

// extraModel is the name of a field in notices: the revision of the changed model settings.
const extraModel = "model_revision"

// ModelChange is a change of the model settings between two turns.
type ModelChange struct {
	// Input and Env are the agent's new input and environment. Restart is set if a running agent
	// must restart to receive them.
	Input   session.AgentInput
	Env     []string
	Restart bool
	// Notice is recorded one time for each Revision, even if a later attempt applies the same
	// change again.
	Notice, Revision string
}

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
