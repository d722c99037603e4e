package main

// checks run in this order, each in its own namespace.
var checks = []check{
	{"a conversation over HTTP clones, serves, works and completes", conversationOverHTTP},
	{"the shipped agent works on a message, with the default class", shippedAgent},
	{"a session's events are readable over HTTP after its pod is gone", readFromArchive},
	{"secrets are not in describe, events, logs or the process list", secretsStayHidden},
	{"a restricted namespace accepts sessions and refuses privileged pods", restrictedNamespace},
	{"a session has no service account token", noToken},
	{"a namespace with sessions has the network policy and the service", networkObjects},
	{"a session with a mounted runtime needs no init container", runtimeMounted},
	{"a runtime killed with SIGKILL is restarted", runtimeKilled},
	{"a session that keeps running out of memory fails after five restarts", killedForMemory},
	{"an agent that runs out of memory fails and reports it", agentKilledForMemory},
	{"a deleted pod is recreated on the same workspace", podDeleted},
	{"a pod deleted during work is replaced, keeps its files and does not start over", podDeletedAtWork},
	{"a pod deleted during work without a volume is lost and not replaced", podLostAtWork},
	{"an injected sidecar does not hide the end of a session", sidecarInjected},
	{"a suspended session resumes on the same workspace", suspendAndResume},
	{"a session stopped and started over HTTP keeps its files", stopAndStartOverHTTP},
	{"an idle session stops by itself", idleStop},
	{"a start with an image that does not exist ends at its deadline and names the image", startDeadline},
	{"a deleted conversation leaves no objects or files", deletedConversation},
	{"figures", figures},
	// These install and remove Parley, so they are last.
	{"an upgrade does not disturb running sessions", upgrade},
	{"removing Parley leaves only the CRDs and users' objects", removal},
	{"the Helm chart installs, upgrades and uninstalls while sessions run on", helmChart},
	{"docs/install.md works as written", installAsDocumented},
}
