package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Labels of the objects that Parley keeps.
const (
	// LabelManagedBy carries ManagedBy on every object that Parley makes.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "parley"
	// LabelComponent says what an object is for.
	LabelComponent = "app.kubernetes.io/component"
	// ComponentSession marks what belongs to sessions.
	ComponentSession = "session"
	// LabelConversation names the Conversation that an object belongs to.
	LabelConversation = "parley.dev/conversation"
	// LabelUserSettings names the UserSettings that an object belongs to.
	LabelUserSettings = "parley.dev/user-settings"
	// LabelSessionClass names the SessionClass of a session's pod.
	LabelSessionClass = "parley.dev/session-class"
	// LabelWorkspace is the kind of workspace that a session's pod was made with.
	LabelWorkspace = "parley.dev/workspace"
	// LabelAttempt is the number of the attempt that a session's pod or Secret was made for.
	LabelAttempt = "parley.dev/attempt"
)

// AnnotationSettingsStored marks UserSettings that were stored over HTTP, which may be as nobody
// had ever set anything.
const AnnotationSettingsStored = "parley.dev/settings-stored"

// AnnotationEndedSignIns lists, on UserSettings, the ids of sign-ins to the page that are over
// before their time, and when that would have been: links that were used, and people who signed
// out.
const AnnotationEndedSignIns = "parley.dev/ended-sign-ins"

// AnnotationTitle is the title that a user gave a Conversation.
const AnnotationTitle = "parley.dev/title"

// AnnotationWrittenAt is when a Secret of SecretTypeUserKey was last written, in RFC 3339. Such a
// Secret is written before the object that refers to it, so it is not pruned while it is young.
const AnnotationWrittenAt = "parley.dev/written-at"

// AnnotationIncomplete marks a Conversation whose keys, replay or images the facade is still writing.
const AnnotationIncomplete = "parley.dev/incomplete"

// Types of the Secrets that Parley keeps.
const (
	// SecretTypeUserKey is a key that a user gave over HTTP, one a Secret.
	SecretTypeUserKey corev1.SecretType = "parley.dev/user-key"
	// SecretTypeSessionKey is a user's session key, made by the operator.
	SecretTypeSessionKey corev1.SecretType = "parley.dev/session-key"
	// SecretTypeSession is what one session needs.
	SecretTypeSession corev1.SecretType = "parley.dev/session"
)

// AgentCatalogueName is the ConfigMap, in the operator's namespace, with the agents that settings
// may name.
const AgentCatalogueName = "parley-agents"

// ModelsName is the ConfigMap, in the operator's namespace, with the prices of models.
const ModelsName = "parley-models"

// SessionKeySecretKey is the key under which a session key stands in its Secret.
const SessionKeySecretKey = "key"

// SessionKeySecretName is the Secret of the session key that the operator makes for a UserSettings.
func SessionKeySecretName(userSettingsName string) string { return userSettingsName + "-session-key" }

// SessionName is what the pod and the Secret of a Conversation's session are called. A name with an
// ending of its own is none that a StatefulSet could want for its pods.
func SessionName(conversation string) string { return conversation + "-session" }

// IndexUserSettingsName is the field by which a cache finds the Conversations of a UserSettings.
const IndexUserSettingsName = "spec.userSettingsName"
