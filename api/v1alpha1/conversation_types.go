package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConversationSpec is what a session is asked to do, which never changes once it is created, and
// how it lives (suspend, restartAt, idleTimeout, startDeadline, maxDuration, ttlAfterStopped),
// which may change at any time.
//
// The API server goes through all rules at each write, also of the status, and it costs twenty times
// as much to look at a field from here as in a rule of the field's own. So rules about single
// values stand with their fields. Which fields go together, and that none is added or taken away,
// is the webhook's, but for those that refer to what not everybody may use: nobody gets around these
// where a webhook is of another version.
// +kubebuilder:validation:XValidation:rule="has(self.mcpConfig) == has(oldSelf.mcpConfig)",message="cannot be changed: create a new Conversation",fieldPath=".mcpConfig"
// +kubebuilder:validation:XValidation:rule="has(self.images) == has(oldSelf.images)",message="cannot be changed: create a new Conversation",fieldPath=".images"
// +kubebuilder:validation:XValidation:rule="has(self.replayJSONRef) == has(oldSelf.replayJSONRef)",message="cannot be changed: create a new Conversation",fieldPath=".replayJSONRef"
// +kubebuilder:validation:XValidation:rule="has(self.sessionClassName) == has(oldSelf.sessionClassName)",message="cannot be changed: create a new Conversation",fieldPath=".sessionClassName"
type ConversationSpec struct {
	// UserSettingsName names the UserSettings, in the same namespace, whose session this is.
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

	// GitProvider of the repository; its token is the one the session gets.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	GitProvider *GitProvider `json:"gitProvider,omitempty"`

	// SelectedBranch of the repository; without it the repository's default branch. It needs a
	// repository, a suggestedTask or a createMicroagent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	SelectedBranch *string `json:"selectedBranch,omitempty"`

	// InitialUserMsg is the first message to the agent.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=131072
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	InitialUserMsg *string `json:"initialUserMsg,omitempty"`

	// ImageURLs of images that go with the first message: http, https or data URLs of at most 16384
	// characters. Larger images go into ConfigMaps, see images.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1572864
	// +kubebuilder:validation:items:XValidation:rule="size(self) <= 16384",message="longer than 16384: use a ConfigMap"
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	ImageURLs []string `json:"imageURLs,omitempty"`

	// Images that go with the first message, in place of imageURLs where some of them are in
	// ConfigMaps.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	Images []ConversationImage `json:"images,omitempty"`

	// ReplayJSONRef names recorded events, as JSON, that the session replays instead of a first
	// message. It goes without initialUserMsg, imageURLs, images, suggestedTask and
	// createMicroagent.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	ReplayJSONRef *ConfigMapKeyRef `json:"replayJSONRef,omitempty"`

	// SuggestedTask to work on; its prompt becomes the first message. A gitProvider beside it is that
	// of the task.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	SuggestedTask *SuggestedTask `json:"suggestedTask,omitempty"`

	// CreateMicroagent asks for a microagent to be written for a repository. It goes without
	// suggestedTask.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	CreateMicroagent *CreateMicroagent `json:"createMicroagent,omitempty"`

	// ConversationInstructions the agent follows throughout the session.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=131072
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	ConversationInstructions *string `json:"conversationInstructions,omitempty"`

	// OneShot ends the session when the agent is done with what it was asked to do, as Completed or
	// Failed. Without it the session waits for messages until it is idle. It needs something to do.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	OneShot bool `json:"oneShot,omitempty"`

	// MCPConfig lists the session's tool servers, in place of those of the settings.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	MCPConfig *MCPConfig `json:"mcpConfig,omitempty"`

	// Workspace that outlives the session's pod. Without it, as the class says.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	Workspace *Workspace `json:"workspace,omitempty"`

	// SessionClassName names the SessionClass; without it the one of the settings, or else the one
	// called default.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot be changed: create a new Conversation"
	SessionClassName *string `json:"sessionClassName,omitempty"`

	// Suspend stops the session and keeps its workspace; unset it to resume.
	Suspend bool `json:"suspend,omitempty"`

	// RestartAt starts a session that has ended again, at this time, once. Change it to start the
	// session once more. A time that comes while the session starts or runs starts nothing.
	RestartAt *metav1.Time `json:"restartAt,omitempty"`

	// IdleTimeout after which a session in which nothing happens ends, with reason Idle. It holds
	// from the next start on. "0s" means never. Without it, as long as the class says.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('720h')",message="must be at most 720h"
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`

	// StartDeadline by which the session must be running, else it ends with the step it is stuck
	// in. One that ran before waits on. Without it, as long as the class says.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('24h')",message="must be at most 24h"
	StartDeadline *metav1.Duration `json:"startDeadline,omitempty"`

	// MaxDuration that the session may be RUNNING since somebody last started it, over all its
	// attempts. Then it stops, with reason MaxDuration, and may be started again. "0s" means
	// without a bound. Without it, as long as the class says.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`

	// TTLAfterStopped deletes the Conversation this long after its session ended. A suspended one
	// has not ended. Without it, as long as the class says.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	TTLAfterStopped *metav1.Duration `json:"ttlAfterStopped,omitempty"`
}

// ConversationImage is an image that goes with the first message: the URL of one, or one in a
// ConfigMap.
// +kubebuilder:validation:ExactlyOneOf=url;configMapKeyRef
// +kubebuilder:validation:XValidation:rule="has(self.configMapKeyRef) == has(self.mediaType)",message="goes with configMapKeyRef: it names the kind of image in the ConfigMap",fieldPath=".mediaType"
type ConversationImage struct {
	// URL of an image: http, https or data, of at most 16384 characters.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1572864
	// +kubebuilder:validation:XValidation:rule="size(self) <= 16384",message="longer than 16384: use a ConfigMap"
	URL *string `json:"url,omitempty"`

	// ConfigMapKeyRef names the image in a ConfigMap, best in its binaryData.
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

// SuggestedTask is a piece of work found at a git provider.
type SuggestedTask struct {
	// GitProvider where the task was found.
	GitProvider GitProvider `json:"gitProvider"`

	// TaskType says what is to be done.
	TaskType TaskType `json:"taskType"`

	// Repo of the task, as owner/name. It is cloned where repository is not set.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Repo string `json:"repo"`

	// IssueNumber of the issue, or of the pull or merge request.
	// +kubebuilder:validation:Minimum=1
	IssueNumber int64 `json:"issueNumber"`

	// Title of the issue, or of the pull or merge request.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Title string `json:"title"`
}

// CreateMicroagent asks for a microagent to be written.
type CreateMicroagent struct {
	// Repo the microagent is for, as owner/name. It is cloned where repository is not set.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Repo string `json:"repo"`

	// GitProvider of the repository, where gitProvider is not set.
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

	// StorageClassName of the volume; without it the cluster's default.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// Conversation is one agent session: what it works on, and how it lives.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=conv,categories=parley
// +kubebuilder:selectablefield:JSONPath=`.spec.userSettingsName`
// +kubebuilder:selectablefield:JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
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

	// Spec is what the session is asked to do and how it lives.
	// +kubebuilder:default={}
	Spec ConversationSpec `json:"spec,omitempty"`

	// Status is what the operator found.
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
