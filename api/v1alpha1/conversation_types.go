package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConversationSpec is the task of a session, which is immutable, and its lifecycle (suspend,
// restartAt, idleTimeout, startDeadline, maxDuration, ttlAfterStopped), which may change at any
// time.
//
// The API server evaluates all rules at each write, including status writes. A rule on this type
// costs twenty times as much as a rule on a field. Rules about single values are therefore on their
// fields, and the webhook checks combinations of fields. A rule on a field does not run when the
// field is added or removed, so the webhook refuses to add or remove an immutable field. A webhook
// of another version might admit such a change. For fields that refer to restricted objects, the
// rules on this type therefore refuse the change too.
// +kubebuilder:validation:XValidation:rule="has(self.mcpConfig) == has(oldSelf.mcpConfig)",message="cannot be changed: create a new Conversation",fieldPath=".mcpConfig"
// +kubebuilder:validation:XValidation:rule="has(self.images) == has(oldSelf.images)",message="cannot be changed: create a new Conversation",fieldPath=".images"
// +kubebuilder:validation:XValidation:rule="has(self.replayJSONRef) == has(oldSelf.replayJSONRef)",message="cannot be changed: create a new Conversation",fieldPath=".replayJSONRef"
// +kubebuilder:validation:XValidation:rule="has(self.sessionClassName) == has(oldSelf.sessionClassName)",message="cannot be changed: create a new Conversation",fieldPath=".sessionClassName"
type ConversationSpec struct {
	// UserSettingsName names the UserSettings of the session's user, in the same namespace.
	// +kubebuilder:default=default
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	UserSettingsName string `json:"userSettingsName,omitempty"`

	// Repository to work on: owner/name at the provider, or a full URL.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	Repository *string `json:"repository,omitempty"`

	// GitProvider of the repository. The session gets only this provider's token.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	GitProvider *GitProvider `json:"gitProvider,omitempty"`

	// SelectedBranch of the repository. Default: the repository's default branch. Requires repository,
	// suggestedTask or createMicroagent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	SelectedBranch *string `json:"selectedBranch,omitempty"`

	// InitialUserMsg is the first message to the agent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=131072
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	InitialUserMsg *string `json:"initialUserMsg,omitempty"`

	// ImageURLs lists the images in the first message, as http, https or data URLs of at most 16384
	// characters. Store larger images in ConfigMaps, and use the field images.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1572864
	// +kubebuilder:validation:items:XValidation:rule="size(self) <= 16384",message="over 16384 chars: use a ConfigMap"
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	ImageURLs []string `json:"imageURLs,omitempty"`

	// Images in the first message. Use this field instead of imageURLs if some images are in
	// ConfigMaps.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	Images []ConversationImage `json:"images,omitempty"`

	// ReplayJSONRef refers to recorded events, as JSON, that the session replays instead of a first
	// message. It cannot be combined with initialUserMsg, imageURLs, images, suggestedTask or
	// createMicroagent.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	ReplayJSONRef *ConfigMapKeyRef `json:"replayJSONRef,omitempty"`

	// SuggestedTask to work on. The prompt of the task becomes the first message. If spec.gitProvider
	// is set, the task must have the same gitProvider.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	SuggestedTask *SuggestedTask `json:"suggestedTask,omitempty"`

	// CreateMicroagent makes the agent write a microagent for a repository. It cannot be combined
	// with suggestedTask.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	CreateMicroagent *CreateMicroagent `json:"createMicroagent,omitempty"`

	// ConversationInstructions are instructions that the agent follows throughout the session.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=131072
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	ConversationInstructions *string `json:"conversationInstructions,omitempty"`

	// OneShot ends the session after its first turn, as Completed or Failed. Without oneShot, the
	// session waits for messages until idleTimeout. OneShot requires initial work, such as
	// initialUserMsg or suggestedTask.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	OneShot bool `json:"oneShot,omitempty"`

	// Agent to run: the name of an entry in the operator's agent catalogue. It replaces the agent of
	// the settings.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	Agent *string `json:"agent,omitempty"`

	// LLMModel is the model of the agent, as provider/model. It replaces the model of the settings.
	// If the settings have an API key and no base URL, both models must have the same provider,
	// because the key belongs to that provider.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[!-~]+$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	LLMModel *string `json:"llmModel,omitempty"`

	// MCPConfig lists the session's tool servers and replaces the tool servers of the settings.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	MCPConfig *MCPConfig `json:"mcpConfig,omitempty"`

	// Workspace is a volume that is kept when the session's pod is deleted. Default: the workspace of
	// the class.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	Workspace *Workspace `json:"workspace,omitempty"`

	// SessionClassName names the SessionClass. Default: the class of the settings, or else the class
	// named default.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	SessionClassName *string `json:"sessionClassName,omitempty"`

	// Suspend stops the session and keeps its workspace. Set it to false to resume the session.
	Suspend bool `json:"suspend,omitempty"`

	// RestartAt restarts an ended session once, at this time. Set a new time for another restart. If
	// the session is starting, running or suspended at the given time, the time has no effect.
	RestartAt *metav1.Time `json:"restartAt,omitempty"`

	// IdleTimeout ends a session with the reason Idle after this time without activity. A change
	// applies from the next start. "0s" means never. Default: the value of the class.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('720h')",message="must be at most 720h"
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`

	// StartDeadline limits the duration of a start. If the session has never run, it ends at the
	// limit. If the session ran in an earlier attempt, it becomes Stalled and keeps waiting. In both
	// cases, status.message names the pending step. The limit does not apply to a restart of the
	// process in the same pod. Default: the value of the class.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('24h')",message="must be at most 24h"
	StartDeadline *metav1.Duration `json:"startDeadline,omitempty"`

	// MaxDuration limits the total RUNNING time of all attempts since the last start by a user. At
	// the limit, the session stops with the reason MaxDuration. A user can restart the session. "0s"
	// means no limit. Default: the value of the class.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`

	// TTLAfterStopped deletes the Conversation this long after its session ended. A suspended session
	// has not ended. Default: the value of the class.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	TTLAfterStopped *metav1.Duration `json:"ttlAfterStopped,omitempty"`
}

// ConversationImage is an image in the first message, given by its URL or by a ConfigMap.
// +kubebuilder:validation:ExactlyOneOf=url;configMapKeyRef
// +kubebuilder:validation:XValidation:rule="has(self.configMapKeyRef) == has(self.mediaType)",message="mediaType must be set if and only if configMapKeyRef is set",fieldPath=".mediaType"
type ConversationImage struct {
	// URL of the image: an http, https or data URL of at most 16384 characters.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1572864
	// +kubebuilder:validation:XValidation:rule="size(self) <= 16384",message="over 16384 chars: use a ConfigMap"
	URL *string `json:"url,omitempty"`

	// ConfigMapKeyRef refers to an image in a ConfigMap, preferably in its binaryData.
	ConfigMapKeyRef *ConfigMapKeyRef `json:"configMapKeyRef,omitempty"`

	// MediaType of the image in the ConfigMap, such as image/png.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^image/[a-z0-9][-+.a-z0-9]*$`
	MediaType *string `json:"mediaType,omitempty"`
}

// TaskType is the kind of a suggested task.
// +kubebuilder:validation:Enum=MERGE_CONFLICTS;FAILING_CHECKS;UNRESOLVED_COMMENTS;OPEN_ISSUE
type TaskType string

// The kinds of suggested tasks.
const (
	MergeConflicts     TaskType = "MERGE_CONFLICTS"
	FailingChecks      TaskType = "FAILING_CHECKS"
	UnresolvedComments TaskType = "UNRESOLVED_COMMENTS"
	OpenIssue          TaskType = "OPEN_ISSUE"
)

// SuggestedTask is a task found at a git provider.
type SuggestedTask struct {
	// GitProvider of the task.
	GitProvider GitProvider `json:"gitProvider"`

	// TaskType is the kind of the task.
	TaskType TaskType `json:"taskType"`

	// Repo of the task, as owner/name. It is cloned if spec.repository is not set.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Repo string `json:"repo"`

	// IssueNumber is the number of the issue, or of the pull or merge request.
	// +kubebuilder:validation:Minimum=1
	IssueNumber int64 `json:"issueNumber"`

	// Title of the issue, or of the pull or merge request.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Title string `json:"title"`
}

// CreateMicroagent describes the microagent to write.
type CreateMicroagent struct {
	// Repo of the microagent, as owner/name. It is cloned if spec.repository is not set.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Repo string `json:"repo"`

	// GitProvider that hosts the repository. It has no effect if spec.gitProvider is set.
	GitProvider *GitProvider `json:"gitProvider,omitempty"`

	// Title of the microagent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Title *string `json:"title,omitempty"`
}

// Workspace is a volume for the session's files.
type Workspace struct {
	// Size of the volume, such as 10Gi.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$`
	Size string `json:"size"`

	// StorageClassName of the volume. Default: the cluster's default StorageClass.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// Conversation is one agent session: its task and its lifecycle.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=conv,categories=parley
// +kubebuilder:selectablefield:JSONPath=`.spec.userSettingsName`
// +kubebuilder:selectablefield:JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Turn",type=string,JSONPath=`.status.turn.reason`
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.userSettingsName`
// +kubebuilder:printcolumn:name="Repository",type=string,JSONPath=`.spec.repository`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Branch",type=string,priority=1,JSONPath=`.spec.selectedBranch`
// +kubebuilder:printcolumn:name="Ready",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="URL",type=string,priority=1,JSONPath=`.status.url`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$')",message="metadata.name must be a DNS label of at most 53 characters: lower-case letters, digits and -"
type Conversation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the session's task and its lifecycle.
	// +kubebuilder:default={}
	Spec ConversationSpec `json:"spec,omitempty"`

	// Status is the observed state of the session.
	// +kubebuilder:default:={"observedGeneration":-1,"state":"STARTING"}
	Status ConversationStatus `json:"status,omitempty"`
}

// ConversationList is a list of Conversations.
// +kubebuilder:object:root=true
type ConversationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Conversation `json:"items"`
}
