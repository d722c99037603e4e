package main

import (
	"strings"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// hints say what to do about a session that does not get on, by the reason. Where nothing needs to
// be done there is none.
var hints = map[string]string{
	v1alpha1.ReasonSettingsNotReady: "Create what is missing; the session starts the moment it is there.",
	v1alpha1.ReasonQueued:           "Stop another session of this user, or wait for one to end.",
	v1alpha1.ReasonScheduling: "No node takes the pod yet: see the pod's events, and what the class asks of " +
		"nodes.",
	v1alpha1.ReasonPullingImage: "Check the image's name, and that the nodes may pull it (images.pullSecrets " +
		"of the class).",
	v1alpha1.ReasonPreparingWorkspace: "The volume or the runtime's image is not there yet: see the events of the " +
		"claim and the pod.",
	v1alpha1.ReasonStartingRuntime: "The log says how far it got: kubectl parley logs NAME. A container that never ran " +
		"has none: see the pod's events.",
	v1alpha1.ReasonRestarting: "The log of the process before says why it ended: kubectl parley logs NAME -p.",
	v1alpha1.ReasonFailed: "The log says more: kubectl parley logs NAME. Start it again with kubectl " +
		"parley start NAME.",
	v1alpha1.ReasonLost: "Its files are gone. Start it again with kubectl parley start NAME; ask for a " +
		"workspace next time.",
	v1alpha1.ReasonStartDeadlineExceeded: "Fix the step that it names, then kubectl parley start NAME.",
	v1alpha1.ReasonSettingsMissing:       "Create what is missing; the session starts the moment it is there.",
	v1alpha1.ReasonNotAllowed: "Ask for what the class allows, or for another class: kubectl describe " +
		"sessionclass.",
	v1alpha1.ReasonForeignObject: "Somebody else's object has the name of one of the session's: remove it, or choose " +
		"another name.",
	v1alpha1.ReasonRejected: "The API server refuses an object of the session's, as a quota does: the message says why.",
}

// unobserved is the hint where nobody looked at what the Conversation says.
const unobserved = "The operator has said nothing of this yet. Is its manager running?"

// hintFor a session is what to do about it; empty where there is nothing to do.
func hintFor(c *v1alpha1.Conversation) string {
	if !observed(c) {
		return unobserved
	}
	return strings.ReplaceAll(hints[c.Status.Reason], "NAME", c.Name)
}
