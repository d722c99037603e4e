package main

import (
	"strings"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// hints maps the reason of a blocked session to advice for the user. Reasons that need no action
// are absent.
var hints = map[string]string{
	v1alpha1.ReasonSettingsNotReady: "Create the missing object; the session then starts by itself.",
	v1alpha1.ReasonQueued:           "Stop another session of this user, or wait for one to end.",
	v1alpha1.ReasonScheduling: "No node accepts the pod yet: check the pod's events, and the resources and placement of " +
		"the class.",
	v1alpha1.ReasonPullingImage: "Check the image name, and that the nodes can pull it (images.pullSecrets " +
		"of the class).",
	v1alpha1.ReasonPreparingWorkspace: "The volume or the runtime image is not ready yet: check the events of the " +
		"PersistentVolumeClaim and the pod.",
	v1alpha1.ReasonStartingRuntime: "Check the log: kubectl parley logs NAME. If no container has run yet, check the " +
		"pod's events.",
	v1alpha1.ReasonRestarting: "Check why the previous process ended: kubectl parley logs NAME -p.",
	v1alpha1.ReasonBackingOff: "Check the nodes and the events of the lost pods; the next pod is created " +
		"automatically. To create it immediately, run kubectl parley stop NAME && kubectl parley start NAME.",
	v1alpha1.ReasonFailed: "Check the log: kubectl parley logs NAME. Then restart the session: kubectl " +
		"parley start NAME.",
	v1alpha1.ReasonLost: "Restart the session with kubectl parley start NAME: files in the archive are restored. Set " +
		"spec.workspace next time to get a volume.",
	v1alpha1.ReasonStartDeadlineExceeded: "Fix the step that the message names, then run kubectl parley start NAME.",
	v1alpha1.ReasonSettingsMissing:       "Create the missing object; the session then starts by itself.",
	v1alpha1.ReasonSettingsDeleted: "Create UserSettings SETTINGS again. If they had an owner, then run kubectl parley " +
		"start NAME. Otherwise, create the Conversation again, too.",
	v1alpha1.ReasonNotAllowed: "Change the request to fit the class, or choose another class: kubectl describe " +
		"sessionclass.",
	v1alpha1.ReasonForeignObject: "An object of another owner has a name that the session needs: remove that object, " +
		"or choose another name.",
	v1alpha1.ReasonRejected: "The API server rejected an object of this session, for example by quota: see the message.",
}

// thenSend is the last part of each hint that asks the user to check or change the model's
// settings. It says how the running session gets the changed settings.
const thenSend = ", then send a message: kubectl parley chat NAME. If Parley has no archive, first stop and " +
	"start the session: kubectl parley stop NAME && kubectl parley start NAME."

var turnHints = map[string]string{
	v1alpha1.ReasonApprovalPending: "Approve or reject the action: kubectl parley chat NAME.",
	v1alpha1.ReasonNoModel:         "Set llmModel in UserSettings SETTINGS" + thenSend,
	v1alpha1.ReasonModelUnreachable: "Check llmBaseURL of UserSettings SETTINGS, and that sessions may reach it" +
		thenSend,
	v1alpha1.ReasonModelRefusedKey:  "Check the Secret that llmAPIKeyRef of UserSettings SETTINGS names" + thenSend,
	v1alpha1.ReasonModelNotFound:    "Check llmModel and llmBaseURL of UserSettings SETTINGS" + thenSend,
	v1alpha1.ReasonModelRateLimited: "Wait, then send a message: kubectl parley chat NAME.",
	v1alpha1.ReasonModelFailed:      "Send a message to try again: kubectl parley chat NAME.",
	v1alpha1.ReasonContextExceeded:  "Start a new conversation, or choose a model with a larger context.",
	v1alpha1.ReasonAgentNotStarted:  "Check the log: kubectl parley logs NAME.",
	v1alpha1.ReasonTurnFailed:       "Check the log: kubectl parley logs NAME. Send a message to try again.",
}

const unobserved = "The operator has not processed this Conversation yet. Is the manager running?"

// hintFor returns the advice for a session; empty if the user need not act.
func hintFor(c *v1alpha1.Conversation) string {
	if !observed(c) {
		return unobserved
	}
	hint := hints[c.Status.Reason]
	if hint == "" && c.Status.Turn != nil {
		hint = turnHints[c.Status.Turn.Reason]
		if c.Spec.LLMModel != nil && c.Status.Turn.Reason == v1alpha1.ReasonModelNotFound {
			hint = "Check llmBaseURL of UserSettings SETTINGS, or create a Conversation with another llmModel."
		}
	}
	return strings.NewReplacer("NAME", c.Name, "SETTINGS", c.Spec.UserSettingsName).Replace(hint)
}
