package main

// checks run in this order, each in a namespace of its own.
var checks = []check{
	{"a conversation over HTTP is cloned, served, worked on and completed", conversationOverHTTP},
	{"a message is worked on by the shipped agent, with the default class", shippedAgent},
	{"what a session left is read over HTTP when its pod is gone", whatSessionsLeave},
	{"secrets are not in describe, events, logs or the process list", secretsStayHidden},
	{"a restricted namespace takes sessions and refuses privileged pods", restrictedNamespace},
	{"a session has no service account token", noToken},
	{"a namespace with sessions has the network policy and the service", networkObjects},
	{"a session whose runtime is mounted needs no init container", runtimeMounted},
	{"a runtime killed with SIGKILL is restarted", runtimeKilled},
	{"a process killed for its memory over and over fails after five restarts", killedForMemory},
	{"an agent killed for its memory fails and says so", agentKilledForMemory},
	{"a deleted pod is made again on the same workspace", podDeleted},
	{"a pod deleted at work is replaced, keeps its files and does not begin again", podDeletedAtWork},
	{"a pod deleted at work without a workspace is lost and not replaced", podLostAtWork},
	{"an injected sidecar does not hide the end of a session", sidecarInjected},
	{"a suspended session resumes on the same workspace", suspendAndResume},
	{"a session stopped and started over HTTP keeps its files", stopAndStartOverHTTP},
	{"an idle session stops by itself", idleStop},
	{"a start with an image that does not exist ends at its deadline and names the image", startDeadline},
	{"a deleted conversation leaves nothing", deletedConversation},
	{"figures", figures},
	// These install and remove Parley, so they are the last.
	{"an upgrade leaves running sessions alone", upgrade},
	{"removing Parley leaves nothing but the CRDs and users' objects", removal},
	{"the Helm chart is installed, upgraded and removed, and sessions run on", helmChart},
	{"docs/install.md works as written", installAsDocumented},
}
