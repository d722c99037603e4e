package webhook

import "strings"

// The API server decides by itself where it can, and asks only about what needs code or other
// objects: URLs, ConfigMaps and Secrets, the bounds of a class; and about whoever may not use the
// settings or the class, who may have another right or is told what is missing. It also asks where
// it knows that the answer is no: about fields that do not go together, and about an update that
// adds to what a session was asked to do or takes from it. As rules of the schema these would cost
// every write of a status more than all of its other rules; the schema holds the values. Of other
// updates there is something to say only if they change a lifetime or start the session again.

// NeedsCode is the condition, in CEL, on which the API server asks about a Conversation. make
// manifests puts it into the configuration.
func NeedsCode() string {
	created := anyOf(
		anyOf(has("mcpConfig", "replayJSONRef", "images", "imageURLs")...),
		anyOf(has("idleTimeout", "startDeadline", "maxDuration", "ttlAfterStopped")...),
		unusualNames, mayNotUseClass, badCombination, mayNotUseSettings)
	updated := anyOf(
		addedOrTaken,
		changed("idleTimeout"), changed("startDeadline"), changed("maxDuration"), changed("ttlAfterStopped"),
		"("+startedAgain+") && ("+anyOf(anyOf(has("mcpConfig", "replayJSONRef", "images")...), mayNotUseSettings)+")")
	return "request.operation == 'CREATE' ? " + created + " : " + updated
}

const (
	plainRepository = `matches('^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$')`
	plainBranch     = `matches('^[A-Za-z0-9_]+([./-][A-Za-z0-9_]+)*$')`

	mayNotUseSettings = "!authorizer.group('parley.dev').resource('usersettings').namespace(request.namespace).name(object.spec.userSettingsName).check('use').allowed()"
	mayNotUseClass    = "has(object.spec.sessionClassName) && object.spec.sessionClassName != 'default' && " +
		"!authorizer.group('parley.dev').resource('sessionclasses').name(object.spec.sessionClassName).check('use').allowed()"
)

var (
	// unusualNames: repositories and branches of the plainest form are known to be good.
	unusualNames = anyOf(
		"has(object.spec.repository) && !object.spec.repository."+plainRepository,
		"has(object.spec.selectedBranch) && (!object.spec.selectedBranch."+plainBranch+
			" || object.spec.selectedBranch.contains('.lock'))",
		"has(object.spec.suggestedTask) && !object.spec.suggestedTask.repo."+plainRepository,
		"has(object.spec.createMicroagent) && !object.spec.createMicroagent.repo."+plainRepository)

	// badCombination has those of combinationErrors that are without a field that is always asked
	// about.
	badCombination = anyOf(
		"has(object.spec.suggestedTask) && (has(object.spec.createMicroagent) || "+
			"has(object.spec.gitProvider) && object.spec.gitProvider != object.spec.suggestedTask.gitProvider)",
		"has(object.spec.selectedBranch) && !"+strings.Join(has("repository", "suggestedTask", "createMicroagent"), " && !"),
		isTrue("object", "oneShot")+" && !"+strings.Join(has("initialUserMsg", "suggestedTask", "createMicroagent",
			"conversationInstructions"), " && !"))

	// addedOrTaken has the fields that changeErrors looks at and the schema does not.
	addedOrTaken = anyOf(
		"['repository', 'gitProvider', 'selectedBranch', 'initialUserMsg', 'imageURLs', 'suggestedTask', "+
			"'createMicroagent', "+
			"'conversationInstructions', 'workspace'].exists(name, (name in object.spec) != (name in oldObject.spec))",
		"("+isTrue("object", "oneShot")+") != ("+isTrue("oldObject", "oneShot")+")")

	// startedAgain is what the function startsAgain says.
	startedAgain = anyOf(
		isTrue("oldObject", "suspend")+" && !("+isTrue("object", "suspend")+")",
		changed("restartAt"))
)

func anyOf(conditions ...string) string { return strings.Join(conditions, " || ") }

// has are the conditions that these fields are there.
func has(fields ...string) (conditions []string) {
	for _, field := range fields {
		conditions = append(conditions, "has(object.spec."+field+")")
	}
	return conditions
}

func isTrue(object, field string) string {
	value := object + ".spec." + field
	return "has(" + value + ") && " + value
}

func changed(field string) string {
	now, before := "object.spec."+field, "oldObject.spec."+field
	return anyOf("has("+now+") != has("+before+")", "has("+now+") && "+now+" != "+before)
}
