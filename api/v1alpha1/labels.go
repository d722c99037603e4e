package v1alpha1

import corev1 "k8s.io/api/core/v1"

// Labels of the objects that Parley manages.
const (
	// LabelManagedBy has the value ManagedBy on every object that Parley creates.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "parley"
	// LabelComponent names the component of an object.
	LabelComponent = "app.kubernetes.io/component"
	// ComponentSession marks the objects of sessions.
	ComponentSession = "session"
	// LabelConversation names the Conversation of an object.
	LabelConversation = "parley.dev/conversation"
	// LabelUserSettings names the UserSettings of an object.
	LabelUserSettings = "parley.dev/user-settings"
	// LabelSessionClass names the SessionClass of a session's pod.
	LabelSessionClass = "parley.dev/session-class"
	// LabelWorkspace is the kind of workspace of a session's pod.
	LabelWorkspace = "parley.dev/workspace"
	// LabelAttempt is the attempt number of a session's pod or Secret.
	LabelAttempt = "parley.dev/attempt"
	// LabelModel is a label of a session's pod and Secret: the revision of the model with which the
	// session started. Sessions that cannot change their model do not have this label.
	LabelModel = "parley.dev/model"
	// LabelProtocol is the protocol of the session in a pod: ProtocolHTTPS if the session has a
	// certificate. A pod without this label was created by Parley 0.1.0, and its Secret is not signed.
	LabelProtocol = "parley.dev/protocol"
	ProtocolHTTP  = "http"
	ProtocolHTTPS = "https"
	// LabelWarm marks a pod that was created as a warm pod, without a session. Its value is the hash
	// of the pod's template. The label stays when a session gets the pod.
	LabelWarm = "parley.dev/warm"
)

// AnnotationPod is set on the Secret of a session that gets a warm pod. It names the pod, as
// NAME/UID. The Secret's MAC covers this annotation. Without this annotation, the session starts in
// a new pod.
const AnnotationPod = "parley.dev/pod"

// AnnotationModel is set on a session's Secret. It is the revision of the last model that the
// manager sent to the running session.
const AnnotationModel = "parley.dev/model"

// AnnotationSettingsStored marks a UserSettings that was stored over HTTP. If a user stored only
// default values, only this annotation shows that the UserSettings was stored.
const AnnotationSettingsStored = "parley.dev/settings-stored"

// AnnotationEndedSignIns is set on UserSettings. It lists the ID and expiry of each sign-in link
// that was used, and of each cookie whose user signed out.
const AnnotationEndedSignIns = "parley.dev/ended-sign-ins"

// AnnotationRequestedBy is set on Conversations by the facade. It is the username of the person who
// created the Conversation over HTTP.
const AnnotationRequestedBy = "parley.dev/requested-by"

// AnnotationTitle is the title that a user gave a Conversation.
const AnnotationTitle = "parley.dev/title"

// AnnotationWrittenAt is when a Secret of SecretTypeUserKey was last written, in RFC 3339. The
// Secret is written before the object that refers to it, so Parley does not delete a recently
// written Secret as unused.
const AnnotationWrittenAt = "parley.dev/written-at"

// AnnotationIncomplete marks a Conversation whose keys, replay or images the facade is still
// writing.
const AnnotationIncomplete = "parley.dev/incomplete"

// Types of the Secrets that Parley manages.
const (
	// SecretTypeUserKey holds one key that a user sent over HTTP.
	SecretTypeUserKey corev1.SecretType = "parley.dev/user-key"
	// SecretTypeSessionKey holds a user's session key, created by the operator.
	SecretTypeSessionKey corev1.SecretType = "parley.dev/session-key"
	// SecretTypeSession holds the secrets of one session.
	SecretTypeSession corev1.SecretType = "parley.dev/session"
	// SecretTypeWarm holds the key of one warm pod.
	SecretTypeWarm corev1.SecretType = "parley.dev/warm"
)

// AgentCatalogueName is the name of the ConfigMap with the agent catalogue, in the operator's
// namespace.
const AgentCatalogueName = "parley-agents"

// DefaultAgent is the agent if neither the Conversation nor its UserSettings name one. If the
// catalogue lacks this entry, the session has no agent.
const DefaultAgent = "CodeActAgent"

// DefaultMaxIterations applies to settings without maxIterations.
const DefaultMaxIterations = 500

// ModelsName is the name of the ConfigMap with the prices of models, in the operator's namespace.
const ModelsName = "parley-models"

// OnboardingName is the name of the ConfigMap, in the operator's namespace, that maps groups to new
// UserSettings.
const OnboardingName = "parley-onboarding"

// SessionKeySecretKey is the name of the entry, in the data of a Secret, that holds a session key.
const SessionKeySecretKey = "key"

// SessionKeySecretName returns the name of the Secret with the session key that the operator
// creates for a UserSettings.
func SessionKeySecretName(userSettingsName string) string { return userSettingsName + "-session-key" }

// SessionName returns the name of the pod and the Secret of a Conversation's session. The suffix
// avoids conflicts with the pods of a StatefulSet. A warm pod has another name, which is in
// status.podName.
func SessionName(conversation string) string { return conversation + "-session" }

// PodName returns the name of the session's pod: the recorded name if the current attempt ran, or else
// the default name.
func (c *Conversation) PodName() string {
	if c.Status.PodName == "" || c.Status.RanAttempt != max(1, c.Status.Attempt) {
		return SessionName(c.Name)
	}
	return c.Status.PodName
}

// IndexUserSettingsName is the cache index that finds the Conversations of a UserSettings.
const IndexUserSettingsName = "spec.userSettingsName"

// IndexInheritFrom is the cache index that finds UserSettings by the name in their inheritFrom.
const IndexInheritFrom = "spec.inheritFrom"
