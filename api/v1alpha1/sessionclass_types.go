package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultSessionClass is the class of sessions if neither the Conversation nor its settings name a
// class. Every user may use it.
const DefaultSessionClass = "default"

// SessionClassSpec holds the defaults and the limits of sessions of a class. The operator's
// defaults apply to absent fields.
type SessionClassSpec struct {
	// Placement of the sessions' pods in the cluster.
	Placement *SessionPlacement `json:"placement,omitempty"`

	// Images of sessions.
	Images *SessionImages `json:"images,omitempty"`

	// Resources of a session.
	Resources *SessionResources `json:"resources,omitempty"`

	// Workspace of sessions whose Conversation does not request a workspace. Default: scratch
	// space.
	Workspace *ClassWorkspace `json:"workspace,omitempty"`

	// WorkspaceLimits limits the volumes that Conversations request. Default: no limits.
	WorkspaceLimits *WorkspaceLimits `json:"workspaceLimits,omitempty"`

	// Lifetimes of sessions: defaults and maximum values for Conversations.
	Lifetimes *SessionLifetimes `json:"lifetimes,omitempty"`

	// MaxRestarts limits the automatic restarts of a session since its last start by a user. A
	// session that exceeds the limit ends as Failed. Default: 5.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxRestarts *int32 `json:"maxRestarts,omitempty"`

	// MaxSessionsPerUser limits the running sessions of one UserSettings. Further sessions are
	// Queued. Default: no limit.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxSessionsPerUser *int32 `json:"maxSessionsPerUser,omitempty"`

	// MaxConversationsPerUser limits the Conversations of one UserSettings. Conversations of every
	// state and every class count. At the limit, no further Conversation of this class can be
	// created. Default: 1000.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxConversationsPerUser *int32 `json:"maxConversationsPerUser,omitempty"`

	// Network of the sessions.
	Network *SessionNetwork `json:"network,omitempty"`

	// MaxIterations is the highest maxIterations that settings may have, and the default for settings
	// without a value.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxIterations *int32 `json:"maxIterations,omitempty"`

	// MaxBudgetPerTask is the highest maxBudgetPerTask that settings may have, and the default for
	// settings without a value. It is a decimal such as "4.50".
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]{1,9}(\.[0-9]{1,6})?$`
	MaxBudgetPerTask *string `json:"maxBudgetPerTask,omitempty"`

	// ExposeGitTokenToAgent decides whether agents get the git token. True: the agent gets the token,
	// unless the settings say false. False: settings with true are refused. Absent: the settings
	// decide.
	ExposeGitTokenToAgent *bool `json:"exposeGitTokenToAgent,omitempty"`

	// Agents of the catalogue that sessions may run. Default: all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	Agents []string `json:"agents,omitempty"`

	// Warm keeps pods ready in advance, so that sessions start at once. Default: no warm pods.
	Warm *WarmPods `json:"warm,omitempty"`

	// Spend limits the costs of model calls. The limits need the archive, Parley's own runtime and
	// models with a price. A session keeps the limits with which it started. Default: no limits.
	Spend *SpendingLimits `json:"spend,omitempty"`
}

// SpendingLimits limit the costs of the model calls of all sessions together, computed with the
// prices in the ConfigMap parley-models.
// +kubebuilder:validation:XValidation:rule="has(self.perUser) || has(self.perNamespace)",message="must limit perUser or perNamespace"
type SpendingLimits struct {
	// PerUser limits the costs of one person: the owner of the UserSettings. Each UserSettings
	// object without an owner counts as a separate person. Sessions of all classes and namespaces
	// count.
	PerUser *SpendingLimit `json:"perUser,omitempty"`

	// PerNamespace limits the costs of all sessions in one namespace. Sessions of all classes count.
	PerNamespace *SpendingLimit `json:"perNamespace,omitempty"`

	// NoticePercent is the percentage of a limit above which the user gets a notice in the
	// conversation. 0 means no notice. Default: 80.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=99
	NoticePercent *int32 `json:"noticePercent,omitempty"`
}

// SpendingLimit is a limit in US dollars, as a decimal such as "4.50", for each period in UTC.
// +kubebuilder:validation:XValidation:rule="has(self.day) || has(self.month)",message="must have a limit per day or per month"
// +kubebuilder:validation:XValidation:rule="!has(self.day) || double(self.day) > 0.0",message="must be more than 0",fieldPath=".day"
// +kubebuilder:validation:XValidation:rule="!has(self.month) || double(self.month) > 0.0",message="must be more than 0",fieldPath=".month"
// +kubebuilder:validation:XValidation:rule="!has(self.day) || !has(self.month) || double(self.day) <= double(self.month)",message="must not be more than month",fieldPath=".day"
type SpendingLimit struct {
	// Day limits the costs of a UTC day.
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]{1,6}(\.[0-9]{1,6})?$`
	Day *string `json:"day,omitempty"`

	// Month limits the costs of a calendar month in UTC.
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]{1,6}(\.[0-9]{1,6})?$`
	Month *string `json:"month,omitempty"`
}

// WarmPods are pods that run without a session. A new session gets a warm pod if the session uses
// the image, the resources and the workspace of the class.
type WarmPods struct {
	// Size is the number of warm pods in each selected namespace.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=500
	Size int32 `json:"size"`

	// NamespaceSelector selects the namespaces with warm pods. {} selects all namespaces. If the
	// manager is installed for some namespaces only, the selector can use only the label
	// kubernetes.io/metadata.name.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
}

// SessionClassStatus is the observed state of a class.
type SessionClassStatus struct {
	// Warm is the number of warm pods that are ready for a session, in all namespaces.
	Warm *int32 `json:"warm,omitempty"`

	// WantedWarm is the number of warm pods that the class requests, in all selected namespaces.
	WantedWarm *int32 `json:"wantedWarm,omitempty"`
}

// SessionPlacement is the placement of session pods in the cluster.
type SessionPlacement struct {
	// NodeSelector that a node must match.
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations of the pods.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// RuntimeClassName of the pods, such as gvisor.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	RuntimeClassName *string `json:"runtimeClassName,omitempty"`

	// PriorityClassName of the pods.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName *string `json:"priorityClassName,omitempty"`

	// Labels of the pods. The operator's own labels take precedence.
	// +kubebuilder:validation:MaxProperties=32
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations of the pods.
	// +kubebuilder:validation:MaxProperties=32
	Annotations map[string]string `json:"annotations,omitempty"`
}

// SessionImages are the images of sessions.
type SessionImages struct {
	// Default is the image if neither the settings nor the agent name an image. Most agents need a
	// shell and git.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Default *string `json:"default,omitempty"`

	// Allowed lists patterns of images that settings and agents may name; * matches any characters.
	// Default: all images.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=set
	Allowed []string `json:"allowed,omitempty"`

	// PullPolicy of the class's image and of Parley's image. Images that users name without a
	// digest are always pulled, so that the registry checks access even if another tenant's pod
	// already pulled the image.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	PullPolicy *corev1.PullPolicy `json:"pullPolicy,omitempty"`

	// PullSecrets are the image pull Secrets of the pods, in the namespace of each session.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	PullSecrets []PullSecret `json:"pullSecrets,omitempty"`

	// RunAsUser is the user ID and the group ID of sessions. Default: 1000. If RunAsUser is 0, the
	// cluster chooses the IDs, as OpenShift requires.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	RunAsUser *int64 `json:"runAsUser,omitempty"`

	// Runtime is how Parley's programs get into pods that use another image than Parley's. Copy,
	// the default, works everywhere: an init container copies the programs into the pod. With
	// Mount, sessions start faster: the pod mounts Parley's image as a volume. Mount requires image
	// volumes on all nodes of the class: Kubernetes 1.36 or newer with containerd 2.1 or CRI-O 1.31
	// or newer.
	Runtime RuntimeDelivery `json:"runtime,omitempty"`
}

// RuntimeDelivery is how Parley's programs get into a session's pod.
// +kubebuilder:validation:Enum=Copy;Mount
type RuntimeDelivery string

const (
	// RuntimeCopy copies the programs with an init container.
	RuntimeCopy RuntimeDelivery = "Copy"
	// RuntimeMount mounts the image with the programs.
	RuntimeMount RuntimeDelivery = "Mount"
)

// PullSecret names an image pull Secret.
type PullSecret struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SessionResources are the resources of a session.
type SessionResources struct {
	// Requests at remoteRuntimeResourceFactor 1: cpu, memory and ephemeral-storage.
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// Limits at remoteRuntimeResourceFactor 1: cpu, memory and ephemeral-storage. The limit of
	// ephemeral-storage covers all files of a session on its node's disk: scratch volumes, /tmp and
	// logs. The default of this limit is 10Gi plus the size of each scratch volume. The factor does
	// not change this default.
	Limits corev1.ResourceList `json:"limits,omitempty"`

	// MaxFactor is the largest remoteRuntimeResourceFactor: 1, 2, 4 or 8. Default: 8.
	// +kubebuilder:validation:Enum=1;2;4;8
	MaxFactor *int32 `json:"maxFactor,omitempty"`

	// ScratchSize limits the size of each scratch volume of a session: the volume for the files of
	// a session without a workspace, the home directory of an image with its own entry point, and
	// /tmp of Parley's own image. Default: 10Gi.
	ScratchSize *resource.Quantity `json:"scratchSize,omitempty"`
}

// ClassWorkspace is the volume of a session whose Conversation requests no volume.
type ClassWorkspace struct {
	Workspace `json:",inline"`

	// TTL is the time from the stop of the session to the deletion of the volume. The Conversation
	// stays. Default: the volume is not deleted.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('87600h')",message="must be at most 87600h"
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// WorkspaceLimits are the limits of spec.workspace of Conversations.
type WorkspaceLimits struct {
	// MaxSize is the largest size of a volume. 0 forbids volumes. Default: no limit.
	MaxSize *resource.Quantity `json:"maxSize,omitempty"`

	// StorageClassNames lists the allowed StorageClasses. A Conversation that requests a volume
	// must then name one of them. Default: all StorageClasses.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	StorageClassNames []string `json:"storageClassNames,omitempty"`
}

// SessionLifetimes are the timeouts and limits of sessions of the class.
type SessionLifetimes struct {
	// IdleTimeout of sessions. Default: 30m.
	IdleTimeout *Lifetime `json:"idleTimeout,omitempty"`
	// StartDeadline of sessions. Default: 10m.
	StartDeadline *Lifetime `json:"startDeadline,omitempty"`
	// MaxDuration of sessions. Default: 24h.
	MaxDuration *Lifetime `json:"maxDuration,omitempty"`
	// TTLAfterStopped of Conversations. Default: Conversations are never deleted.
	TTLAfterStopped *Lifetime `json:"ttlAfterStopped,omitempty"`
	// EndedPodTTL is the time from the end of the session to the deletion of the pod and its logs.
	// The Conversation stays. Default: the pod is not deleted.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	EndedPodTTL *metav1.Duration `json:"endedPodTTL,omitempty"`
}

// Lifetime is a default and a maximum. "0s" means no limit.
// +kubebuilder:validation:XValidation:rule="!has(self.max) || !has(self.default) || duration(self.max) == duration('0s') || duration(self.default) <= duration(self.max)",message="default must not be longer than max"
type Lifetime struct {
	// Default for Conversations without a value.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	Default *metav1.Duration `json:"default,omitempty"`

	// Max is the maximum value in a Conversation.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	Max *metav1.Duration `json:"max,omitempty"`
}

// SessionNetwork is the network access of sessions.
// +kubebuilder:validation:XValidation:rule="!has(self.httpProxy) || self.httpProxy.matches('^((https?|socks5h?)://([A-Za-z0-9._-]+|[[][0-9A-Fa-f:.]+[]])(:[0-9]{1,5})?/?)?$')",message="must be the URL of a proxy without user name and password, such as http://proxy.example.com:3128",fieldPath=".httpProxy"
// +kubebuilder:validation:XValidation:rule="!has(self.httpsProxy) || self.httpsProxy.matches('^((https?|socks5h?)://([A-Za-z0-9._-]+|[[][0-9A-Fa-f:.]+[]])(:[0-9]{1,5})?/?)?$')",message="must be the URL of a proxy without user name and password, such as http://proxy.example.com:3128",fieldPath=".httpsProxy"
type SessionNetwork struct {
	// EgressAllow lists private address ranges that sessions may reach.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="must be a CIDR, such as 10.20.0.0/16"
	// +listType=set
	EgressAllow []string `json:"egressAllow,omitempty"`

	// HTTPProxy sets the session's variables HTTP_PROXY and http_proxy. A URL without user name and
	// password.
	// +kubebuilder:validation:MaxLength=2048
	HTTPProxy string `json:"httpProxy,omitempty"`

	// HTTPSProxy sets the variables HTTPS_PROXY and https_proxy. A URL without user name and
	// password.
	// +kubebuilder:validation:MaxLength=2048
	HTTPSProxy string `json:"httpsProxy,omitempty"`

	// NoProxy sets the variables NO_PROXY and no_proxy.
	// +kubebuilder:validation:MaxLength=4096
	NoProxy string `json:"noProxy,omitempty"`

	// CABundle holds PEM certificates of authorities that sessions trust in addition to the
	// authorities of their image. It must not contain a private key. The limit of 128 KiB leaves
	// room for the copy that kubectl apply stores in an annotation.
	// +kubebuilder:validation:MaxLength=131072
	// +kubebuilder:validation:XValidation:rule="self.contains('-----BEGIN CERTIFICATE-----')",message="must be PEM"
	// +kubebuilder:validation:XValidation:rule="!self.contains('PRIVATE KEY-----')",message="must not hold a private key"
	CABundle string `json:"caBundle,omitempty"`
}

// CABundle returns the CA bundle of the class, or an empty text.
func (s *SessionClassSpec) CABundle() string {
	if s.Network == nil {
		return ""
	}
	return s.Network.CABundle
}

// SessionClass holds the defaults and limits of a class of sessions. Administrators create it, like
// a StorageClass.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=sessionclasses,singular=sessionclass,shortName=sclass
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.images.default`
// +kubebuilder:printcolumn:name="Workspace",type=string,JSONPath=`.spec.workspace.size`
// +kubebuilder:printcolumn:name="Max-Factor",type=integer,JSONPath=`.spec.resources.maxFactor`
// +kubebuilder:printcolumn:name="Warm",type=integer,JSONPath=`.status.warm`
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.status.wantedWarm`
// +kubebuilder:printcolumn:name="Runtime-Class",type=string,priority=1,JSONPath=`.spec.placement.runtimeClassName`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$')",message="metadata.name must be a DNS label of at most 53 characters: lower-case letters, digits and -"
type SessionClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec holds the defaults and limits of the class.
	// +kubebuilder:default={}
	Spec SessionClassSpec `json:"spec,omitempty"`

	// Status is written by the manager.
	Status SessionClassStatus `json:"status,omitempty"`
}

// SessionClassList is a list of SessionClasses.
// +kubebuilder:object:root=true
type SessionClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SessionClass `json:"items"`
}
