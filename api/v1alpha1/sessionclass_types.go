package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultSessionClass is the class of sessions for which neither the Conversation nor its settings
// name one. Everybody may use it.
const DefaultSessionClass = "default"

// SessionClassSpec is what every session of the class gets, and may not exceed. What it leaves out
// is as the operator has it.
type SessionClassSpec struct {
	// Placement of the sessions' pods in the cluster.
	Placement *SessionPlacement `json:"placement,omitempty"`

	// Images that sessions run in.
	Images *SessionImages `json:"images,omitempty"`

	// Resources of a session.
	Resources *SessionResources `json:"resources,omitempty"`

	// Workspace of sessions that do not ask for one of their own. Without it they get scratch
	// space.
	Workspace *ClassWorkspace `json:"workspace,omitempty"`

	// Lifetimes of sessions: what they are where a Conversation says nothing, and how long they may
	// be.
	Lifetimes *SessionLifetimes `json:"lifetimes,omitempty"`

	// MaxRestarts of a session since somebody last started it; then it ends as Failed. 5 where it
	// is absent.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxRestarts *int32 `json:"maxRestarts,omitempty"`

	// MaxSessionsPerUser is how many sessions of one UserSettings run at a time; the others wait,
	// Queued. Without a bound where it is absent.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	MaxSessionsPerUser *int32 `json:"maxSessionsPerUser,omitempty"`

	// Network of the sessions.
	Network *SessionNetwork `json:"network,omitempty"`

	// MaxIterations is the most that settings may ask for.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxIterations *int32 `json:"maxIterations,omitempty"`

	// MaxBudgetPerTask is the most that settings may ask for, in US dollars, as a decimal such as
	// "4.50".
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]{1,9}(\.[0-9]{1,6})?$`
	MaxBudgetPerTask *string `json:"maxBudgetPerTask,omitempty"`

	// Agents of the catalogue that sessions may run; all where it is absent.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=128
	// +listType=set
	Agents []string `json:"agents,omitempty"`
}

// SessionPlacement is where the pods of sessions run.
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

	// Labels of the pods, beside the operator's own, which win.
	// +kubebuilder:validation:MaxProperties=32
	Labels map[string]string `json:"labels,omitempty"`

	// Annotations of the pods.
	// +kubebuilder:validation:MaxProperties=32
	Annotations map[string]string `json:"annotations,omitempty"`
}

// SessionImages are the images that sessions run in.
type SessionImages struct {
	// Default image, where neither the settings nor the agent name one. It needs a shell and git
	// for most agents.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Default *string `json:"default,omitempty"`

	// Allowed are patterns of the images that settings and agents may name; * stands for any
	// characters. All where it is absent.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=set
	Allowed []string `json:"allowed,omitempty"`

	// PullPolicy of the class's own image and of Parley's. Images that users name are pulled
	// always, unless they name a digest: who may run an image that another tenant's pod brought to
	// the node is the registry's to say.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	PullPolicy *corev1.PullPolicy `json:"pullPolicy,omitempty"`

	// PullSecrets in the namespace of each session.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	PullSecrets []PullSecret `json:"pullSecrets,omitempty"`

	// RunAsUser is the user and group id of sessions, 1000 where it is absent. 0 leaves both to the
	// cluster, as OpenShift wants it.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	RunAsUser *int64 `json:"runAsUser,omitempty"`

	// Runtime is how Parley's programs come into an image that is not Parley's. Copy, the default,
	// works everywhere: it has an init container copy them into the pod. Mount mounts Parley's
	// image as a volume, which is faster by that container: it needs image volumes on all nodes of
	// the class, as Kubernetes has them from 1.36 on with containerd from 2.1 or CRI-O from 1.31.
	Runtime RuntimeDelivery `json:"runtime,omitempty"`
}

// RuntimeDelivery is how Parley's programs come into a session's pod.
// +kubebuilder:validation:Enum=Copy;Mount
type RuntimeDelivery string

const (
	// RuntimeCopy has an init container copy them.
	RuntimeCopy RuntimeDelivery = "Copy"
	// RuntimeMount mounts the image that has them.
	RuntimeMount RuntimeDelivery = "Mount"
)

// PullSecret names a Secret with which images are pulled.
type PullSecret struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// SessionResources are the resources of a session.
type SessionResources struct {
	// Requests at factor 1: cpu and memory.
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// Limits at factor 1: cpu and memory.
	Limits corev1.ResourceList `json:"limits,omitempty"`

	// MaxFactor is the largest remoteRuntimeResourceFactor: 1, 2, 4 or 8. 8 where it is absent.
	// +kubebuilder:validation:Enum=1;2;4;8
	MaxFactor *int32 `json:"maxFactor,omitempty"`

	// ScratchSize bounds each scratch volume of a session: its files, where it has no workspace of
	// its own, and the home that an image with its own runtime is given. 10Gi where it is absent.
	ScratchSize *resource.Quantity `json:"scratchSize,omitempty"`
}

// ClassWorkspace is the volume that a session gets which does not ask for one of its own.
type ClassWorkspace struct {
	Workspace `json:",inline"`

	// TTL is how long the volume is kept after the session stopped; the Conversation stays. For
	// ever where it is absent.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('87600h')",message="must be at most 87600h"
	TTL *metav1.Duration `json:"ttl,omitempty"`
}

// SessionLifetimes are how long sessions of the class live.
type SessionLifetimes struct {
	// IdleTimeout of sessions. 30m by default.
	IdleTimeout *Lifetime `json:"idleTimeout,omitempty"`
	// StartDeadline of sessions. 10m by default.
	StartDeadline *Lifetime `json:"startDeadline,omitempty"`
	// MaxDuration of sessions. 24h by default.
	MaxDuration *Lifetime `json:"maxDuration,omitempty"`
	// TTLAfterStopped of Conversations. They stay by default.
	TTLAfterStopped *Lifetime `json:"ttlAfterStopped,omitempty"`
	// EndedPodTTL is how long the pod of a session that ended stays, for its logs; the Conversation
	// stays. For ever where it is absent.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	EndedPodTTL *metav1.Duration `json:"endedPodTTL,omitempty"`
}

// Lifetime is a default and a bound. "0s" means without end.
// +kubebuilder:validation:XValidation:rule="!has(self.max) || !has(self.default) || duration(self.max) == duration('0s') || duration(self.default) <= duration(self.max)",message="default must not be longer than max"
type Lifetime struct {
	// Default where a Conversation says nothing.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	Default *metav1.Duration `json:"default,omitempty"`

	// Max that a Conversation may ask for.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be at most 8760h"
	Max *metav1.Duration `json:"max,omitempty"`
}

// SessionNetwork is whom sessions may reach, and how.
// +kubebuilder:validation:XValidation:rule="!has(self.httpProxy) || self.httpProxy.matches('^((https?|socks5h?)://([A-Za-z0-9._-]+|[[][0-9A-Fa-f:.]+[]])(:[0-9]{1,5})?/?)?$')",message="must be the URL of a proxy without user name and password, such as http://proxy.example.com:3128",fieldPath=".httpProxy"
// +kubebuilder:validation:XValidation:rule="!has(self.httpsProxy) || self.httpsProxy.matches('^((https?|socks5h?)://([A-Za-z0-9._-]+|[[][0-9A-Fa-f:.]+[]])(:[0-9]{1,5})?/?)?$')",message="must be the URL of a proxy without user name and password, such as http://proxy.example.com:3128",fieldPath=".httpsProxy"
type SessionNetwork struct {
	// EgressAllow lists ranges that sessions may reach although they are private.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule="isCIDR(self)",message="must be a CIDR, such as 10.20.0.0/16"
	// +listType=set
	EgressAllow []string `json:"egressAllow,omitempty"`

	// HTTPProxy becomes the variables HTTP_PROXY and http_proxy of the session. A URL without a user
	// name and password.
	// +kubebuilder:validation:MaxLength=2048
	HTTPProxy string `json:"httpProxy,omitempty"`

	// HTTPSProxy becomes the variables HTTPS_PROXY and https_proxy. A URL as that of httpProxy.
	// +kubebuilder:validation:MaxLength=2048
	HTTPSProxy string `json:"httpsProxy,omitempty"`

	// NoProxy becomes the variables NO_PROXY and no_proxy.
	// +kubebuilder:validation:MaxLength=4096
	NoProxy string `json:"noProxy,omitempty"`

	// CABundle are certificates of authorities, as PEM, that sessions trust beside those that their
	// image has. It is public: it holds no key. 128 KiB leave room for the copy that kubectl apply
	// keeps in an annotation.
	// +kubebuilder:validation:MaxLength=131072
	// +kubebuilder:validation:XValidation:rule="self.contains('-----BEGIN CERTIFICATE-----')",message="must be PEM"
	// +kubebuilder:validation:XValidation:rule="!self.contains('PRIVATE KEY-----')",message="must not hold a private key"
	CABundle string `json:"caBundle,omitempty"`
}

// CABundle of the class; empty where it has none.
func (s *SessionClassSpec) CABundle() string {
	if s.Network == nil {
		return ""
	}
	return s.Network.CABundle
}

// SessionClass is what sessions of a kind get and may not exceed. Administrators write it, as they
// write StorageClasses.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=sessionclasses,singular=sessionclass,shortName=sclass
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.images.default`
// +kubebuilder:printcolumn:name="Workspace",type=string,JSONPath=`.spec.workspace.size`
// +kubebuilder:printcolumn:name="Max-Factor",type=integer,JSONPath=`.spec.resources.maxFactor`
// +kubebuilder:printcolumn:name="Runtime-Class",type=string,priority=1,JSONPath=`.spec.placement.runtimeClassName`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$')",message="metadata.name must be a DNS label of at most 53 characters: lower-case letters, digits and -"
type SessionClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what sessions of the class get.
	// +kubebuilder:default={}
	Spec SessionClassSpec `json:"spec,omitempty"`
}

// SessionClassList is a list of SessionClasses.
// +kubebuilder:object:root=true
type SessionClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SessionClass `json:"items"`
}
