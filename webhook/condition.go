package webhook

import (
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Groups of a Conversation's fields. The match condition treats each group differently.
var (
	lifetimes = []string{"idleTimeout", "startDeadline", "maxDuration", "ttlAfterStopped"}
	lifecycle = append([]string{"suspend", "restartAt"}, lifetimes...)
	// references are the fields that refer to objects. The sender needs the right to read these
	// objects.
	references = []string{"mcpConfig", "replayJSONRef", "images"}
	// checkedByCode are the fields with values that only code can check.
	checkedByCode = slices.Concat(references, []string{"imageURLs", "agent", "llmModel", "workspace"}, lifetimes)
)

const (
	// The API server accepts these simple repositories and branches itself. The webhook checks all
	// other repositories and branches.
	plainRepository = `matches('^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$')`
	plainBranch     = `matches('^[A-Za-z0-9_]+([./-][A-Za-z0-9_]+)*$')`

	requestedBy = "metadata.?annotations[?'" + v1alpha1.AnnotationRequestedBy + "']"

	mayNotUseSettings = "!authorizer.group('parley.dev').resource('usersettings').namespace(request.namespace)" +
		".name(object.spec.userSettingsName).check('use').allowed()"
	mayNotUseClass = "object.spec.?sessionClassName.orValue('default') != 'default' && " +
		"!authorizer.group('parley.dev').resource('sessionclasses')" +
		".name(object.spec.sessionClassName).check('use').allowed()"
)

// MatchCondition returns the CEL condition under which the API server calls the webhook for a
// Conversation. "make manifests" writes the condition into config/webhook.
//
// A new Conversation needs the webhook if one of these is true:
//   - A check needs code or other objects.
//   - A rule is broken.
//   - The Conversation names the person who requested it.
//   - The sender lacks the right to use the settings or the class. Instead of the right to use the
//     settings, the webhook also accepts the right to get all Secrets. If the sender has neither
//     right, the webhook's error names both.
//
// An update needs the webhook if one of these is true:
//   - It adds an immutable field that was absent, or removes one. A change of an existing value
//     needs no webhook, because the schema refuses it.
//   - It changes a lifetime, or the person who requested the session.
//   - It restarts a session, and the Conversation refers to other objects.
//   - It restarts a session, and the sender lacks the right to use the settings of the session.
func MatchCondition() string {
	created := append(isSet(checkedByCode...),
		"has(object.spec.repository) && !object.spec.repository."+plainRepository,
		"has(object.spec.selectedBranch) && (!object.spec.selectedBranch."+plainBranch+
			" || object.spec.selectedBranch.contains('.lock'))",
		"has(object.spec.suggestedTask) && !object.spec.suggestedTask.repo."+plainRepository,
		"has(object.spec.createMicroagent) && !object.spec.createMicroagent.repo."+plainRepository,
		"object."+requestedBy+".hasValue()")
	for _, rule := range rules {
		if !slices.ContainsFunc(rule.set, func(name string) bool { return slices.Contains(checkedByCode, name) }) {
			created = append(created, rule.cel())
		}
	}
	created = append(created, mayNotUseClass, mayNotUseSettings)

	mutable := "['" + strings.Join(lifecycle, "', '") + "']"
	updated := []string{
		"object.spec.exists(name, !(name in " + mutable + ") && !(name in oldObject.spec))",
		"oldObject.spec.exists(name, !(name in " + mutable + ") && !(name in object.spec))",
		"object." + requestedBy + " != oldObject." + requestedBy,
	}
	for _, name := range lifetimes {
		updated = append(updated, changed(name))
	}
	updated = append(updated, "("+restarted+") && ("+anyOf(append(isSet(references...), mayNotUseSettings)...)+")")
	return "request.operation == 'CREATE' ? (\n  " + strings.Join(created, "\n  || ") + "\n) : (\n  " +
		strings.Join(updated, "\n  || ") + "\n)"
}

// restarts reports whether an update restarts a session. The variable restarted contains the same
// condition in CEL.
func restarts(old, updated *v1alpha1.Conversation) bool {
	return old.Spec.Suspend && !updated.Spec.Suspend || !old.Spec.RestartAt.Equal(updated.Spec.RestartAt)
}

var restarted = anyOf("oldObject.spec.?suspend.orValue(false) && !object.spec.?suspend.orValue(false)",
	changed("restartAt"))

func anyOf(conditions ...string) string { return strings.Join(conditions, " || ") }

// isSet returns a CEL condition for each field. The condition is true if the field is set. The
// boolean oneShot counts as set only if it is true.
func isSet(names ...string) (conditions []string) {
	for _, name := range names {
		condition := "has(object.spec." + name + ")"
		if name == "oneShot" {
			condition = "object.spec.?oneShot.orValue(false)"
		}
		conditions = append(conditions, condition)
	}
	return conditions
}

func changed(name string) string { return "object.spec.?" + name + " != oldObject.spec.?" + name }
