package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConversationState is where a session is in its life.
// +kubebuilder:validation:Enum=STARTING;RUNNING;STOPPED
type ConversationState string

// The states of a session.
const (
	// StateStarting means the session is wanted and its pod is not ready.
	StateStarting ConversationState = "STARTING"
	// StateRunning means the session's pod is ready.
	StateRunning ConversationState = "RUNNING"
	// StateStopped means the session is not wanted, or over.
	StateStopped ConversationState = "STOPPED"
)

// WorkspaceKind is where the files of a session are.
type WorkspaceKind string

// The kinds of workspaces.
const (
	// WorkspaceOwn is a volume that the Conversation asks for.
	WorkspaceOwn WorkspaceKind = "Own"
	// WorkspaceClass is a volume that the class gives.
	WorkspaceClass WorkspaceKind = "Class"
	// WorkspaceScratch goes with the pod.
	WorkspaceScratch WorkspaceKind = "Scratch"
)

// ConversationStatus is what the operator found.
type ConversationStatus struct {
	// ObservedGeneration of the spec that this status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// State of the session: STARTING, RUNNING or STOPPED.
	State ConversationState `json:"state,omitempty"`

	// Reason for the state, in one word.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// Message says more about the reason.
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`

	// URL of the session inside the cluster, while it is running.
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`

	// PodIP is the address of the session's pod, while it is running. A name is known to resolvers
	// only after a while.
	// +kubebuilder:validation:MaxLength=64
	PodIP string `json:"podIP,omitempty"`

	// Attempt is the number of the session's present attempt. Its pod carries it as a label. Absent
	// means 1.
	Attempt int32 `json:"attempt,omitempty"`

	// FirstAttempt is the one that somebody's last start began with; those after it took its place.
	// Absent means 1.
	FirstAttempt int32 `json:"firstAttempt,omitempty"`

	// RanAttempt is the last attempt that got to run. Absent means none.
	RanAttempt int32 `json:"ranAttempt,omitempty"`

	// Restarts of the session since somebody last started it: of its process, and of its pod,
	// except where the cluster took the pod away to drain a node or to make room.
	Restarts int32 `json:"restarts,omitempty"`

	// PodRestarts are the restarts of the process in the present attempt's pod, which Restarts
	// includes.
	PodRestarts int32 `json:"podRestarts,omitempty"`

	// LastRestart says why the session was last restarted, such as OOMKilled, Unresponsive or
	// Evicted.
	// +kubebuilder:validation:MaxLength=256
	LastRestart string `json:"lastRestart,omitempty"`

	// RanFor is how long the session was RUNNING since somebody last started it, without the time
	// since runningTime while it runs.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	RanFor *metav1.Duration `json:"ranFor,omitempty"`

	// Workspace is where the session's files are, as it was found at its first start: Own (the
	// volume that the Conversation asks for), Class (the class's), or Scratch (space that goes with
	// the pod).
	// +kubebuilder:validation:Enum=Own;Class;Scratch
	Workspace WorkspaceKind `json:"workspace,omitempty"`

	// Result is what came of the session when it last ended of its own accord; absent where it did
	// not say. It stays while the session is started again, until the next end.
	Result *ConversationResult `json:"result,omitempty"`

	// StartTime is when the session last began to start.
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// RunningTime is when the session last became ready.
	RunningTime *metav1.Time `json:"runningTime,omitempty"`

	// StopTime is when the session last stopped. It is absent while the session starts or runs.
	StopTime *metav1.Time `json:"stopTime,omitempty"`

	// RestartedAt is the restartAt that was last followed.
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`

	// Conditions: Ready, Reconciling, Stalled, PodReady and SettingsReady. One writer, the manager,
	// has them all, so the API server need not know whose each of their fields is.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
