package controllers

import (
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// unconfirmed refuses an agent that would act without asking, where its user wants to be asked.
func unconfirmed(settings *v1alpha1.UserSettingsSpec, agent *session.Agent) *problem {
	if agent == nil || len(agent.Command) == 0 || agent.Confirms || !ptr.Deref(settings.ConfirmationMode, false) {
		return nil
	}
	return &problem{v1alpha1.ReasonNotAllowed, fmt.Sprintf("UserSettings spec.confirmationMode: the agent %s does not "+
		"ask before it acts; choose one that does, or turn it off", agent.Name)}
}
