package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ConversationState is the state of a session.
// +kubebuilder:validation:Enum=STARTING;RUNNING;STOPPED
type ConversationState string

// The states of a session.
const (
	// StateStarting means that the session should run and its pod is not ready.
	StateStarting ConversationState = "STARTING"
	// StateRunning means that the session's pod is ready.
	StateRunning ConversationState = "RUNNING"
	// StateStopped means that the session is suspended, has ended or is being deleted.
	StateStopped ConversationState = "STOPPED"
)

// WorkspaceKind is the kind of storage of a session's files.
type WorkspaceKind string

// The kinds of workspaces.
const (
	// WorkspaceOwn is a volume that the Conversation requests.
	WorkspaceOwn WorkspaceKind = "Own"
	// WorkspaceClass is a volume that the class provides.
	WorkspaceClass WorkspaceKind = "Class"
	// WorkspaceScratch is scratch space, which is deleted with the pod.
	WorkspaceScratch WorkspaceKind = "Scratch"
)

// LifetimeLimits are the largest lifetimes that a class allows. An absent limit means no limit.
type LifetimeLimits struct {
	// IdleTimeout is the largest idleTimeout.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	IdleTimeout *metav1.Duration `json:"idleTimeout,omitempty"`

	// StartDeadline is the largest startDeadline.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	StartDeadline *metav1.Duration `json:"startDeadline,omitempty"`

	// MaxDuration is the largest maxDuration.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`

	// TTLAfterStopped is the largest ttlAfterStopped.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	TTLAfterStopped *metav1.Duration `json:"ttlAfterStopped,omitempty"`
}

// StartedClass is the class that a session started with, and the limits of that class at the start.
// The limits apply until the next start by a user. Fields of the Conversation take precedence.
type StartedClass struct {
	// Name of the SessionClass.
	// +kubebuilder:validation:MaxLength=53
	Name string `json:"name"`

	// FirstAttempt is the value of status.firstAttempt at the time when this class was recorded. If
	// status.firstAttempt is higher now, no class has been recorded since a user last started the
	// session.
	FirstAttempt int32 `json:"firstAttempt"`

	// StartDeadline limits the duration of a start. Absent means no limit.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	StartDeadline *metav1.Duration `json:"startDeadline,omitempty"`

	// MaxDuration limits the RUNNING time of the session. Absent means no limit.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	MaxDuration *metav1.Duration `json:"maxDuration,omitempty"`

	// MaxRestarts limits the number of automatic restarts. Absent means 0.
	MaxRestarts int32 `json:"maxRestarts,omitempty"`

	// TTLAfterStopped is how long the Conversation stays after its session ended. Absent means
	// forever.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	TTLAfterStopped *metav1.Duration `json:"ttlAfterStopped,omitempty"`

	// WorkspaceTTL is how long the class's volume stays after the session stopped. Absent means
	// forever.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	WorkspaceTTL *metav1.Duration `json:"workspaceTTL,omitempty"`

	// EndedPodTTL is how long the pod stays after the session ended. Absent means forever.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	EndedPodTTL *metav1.Duration `json:"endedPodTTL,omitempty"`

	// Max holds the largest lifetimes that the Conversation may request until its next start.
	// Absent means no limits.
	Max *LifetimeLimits `json:"max,omitempty"`

	// SignedSecret is true if the manager signed the session's Secret. It is absent if an older
	// version of Parley started the session: that version did not sign Secrets, and did not set the
	// field max.
	SignedSecret bool `json:"signedSecret,omitempty"`
}

// ConversationStatus is the observed state of a session.
type ConversationStatus struct {
	// ObservedGeneration of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// State of the session: STARTING, RUNNING or STOPPED.
	State ConversationState `json:"state,omitempty"`

	// Reason for the state, in one word.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// Message explains the reason.
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`

	// URL of the session inside the cluster, while the session is running.
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`

	// PodIP is the address of the session's pod, while the session is running. Use the address if the
	// host name in url does not resolve yet.
	// +kubebuilder:validation:MaxLength=64
	PodIP string `json:"podIP,omitempty"`

	// PodName is the name of the session's pod, set when the session is RUNNING. If the session got a
	// warm pod, it is the name of that pod. While the next attempt starts, it is the name of the
	// previous pod.
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`

	// Attempt is the number of the current attempt. The label parley.dev/attempt of the pod has the
	// same number. Absent means 1.
	Attempt int32 `json:"attempt,omitempty"`

	// FirstAttempt is the number of the first attempt after the last start by a user. Absent means
	// 1.
	FirstAttempt int32 `json:"firstAttempt,omitempty"`

	// RanAttempt is the number of the last attempt that was RUNNING, or that was lost after its
	// process started. Absent means that there is no such attempt.
	RanAttempt int32 `json:"ranAttempt,omitempty"`

	// Restarts counts restarts of the process and replacements of the pod since the last start by a
	// user. A replacement does not count if the pod was drained or preempted, or if its process
	// never started.
	Restarts int32 `json:"restarts,omitempty"`

	// PodRestarts counts restarts of the process in the current pod. They are included in restarts.
	PodRestarts int32 `json:"podRestarts,omitempty"`

	// LastRestart is the cause of the last restart, such as OOMKilled, Unresponsive or Evicted.
	// +kubebuilder:validation:MaxLength=256
	LastRestart string `json:"lastRestart,omitempty"`

	// Losses is the number of pods lost in a row. If a lost pod ran for at least ten minutes, the
	// count begins again at 1. If the count is 2 or more, the next pod waits until retryTime.
	Losses int32 `json:"losses,omitempty"`

	// RetryTime is set while the reason is BackingOff: the next pod is created at this time.
	RetryTime *metav1.Time `json:"retryTime,omitempty"`

	// QueueNumber is set while the reason is Queued. Among the queued sessions of a user, the
	// session with the lowest number starts first.
	QueueNumber int64 `json:"queueNumber,omitempty"`

	// RanFor is the total RUNNING time since the last start by a user. The time since runningTime is
	// added when the session is no longer RUNNING.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	RanFor *metav1.Duration `json:"ranFor,omitempty"`

	// SettingsUID is the UID of the UserSettings that the Conversation belongs to, set as soon as
	// the UserSettings exist. If the UserSettings are deleted and created again, the Conversation
	// belongs to the new UserSettings only if their owner is the person in status.owner. Otherwise,
	// the session cannot start, and the Conversation is not visible over HTTP.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=36
	SettingsUID types.UID `json:"settingsUID,omitempty"`

	// Owner is the username of the person that the Conversation belongs to, if the UserSettings have
	// an owner. If another person becomes the owner of the UserSettings, the session ends, and that
	// person does not see the Conversation over HTTP.
	// +kubebuilder:validation:MaxLength=256
	Owner string `json:"owner,omitempty"`

	// SessionClass is the class that the session used when a user last started it, with the limits
	// of the class at that time. It is recorded when the session gets its pod.
	SessionClass *StartedClass `json:"sessionClass,omitempty"`

	// Workspace is the storage of the session's files: Own (the Conversation's volume), Class (the
	// class's volume), or Scratch (deleted with the pod). It is chosen at the first start. If the
	// class's volume no longer exists at a later start, the workspace is chosen again.
	// +kubebuilder:validation:Enum=Own;Class;Scratch
	Workspace WorkspaceKind `json:"workspace,omitempty"`

	// WorkspaceClaimName is the name of the PersistentVolumeClaim of the session's files, if the
	// volume was created with a warm pod. Absent means that the name is the name of the Conversation
	// followed by -workspace.
	// +kubebuilder:validation:MaxLength=253
	WorkspaceClaimName string `json:"workspaceClaimName,omitempty"`

	// Result is the report that the session wrote when it last ended by itself. If the session wrote
	// no report, Result is absent. A result stays until the session ends the next time.
	Result *ConversationResult `json:"result,omitempty"`

	// Turn is the outcome of the last turn if a user has to act: the turn failed, or waits for
	// approval. Otherwise Turn is absent. Turn does not change while the manager cannot read the
	// session's reports from the archive.
	Turn *ConversationTurn `json:"turn,omitempty"`

	// StartTime is when the last start began.
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// RunningTime is when the session last became RUNNING.
	RunningTime *metav1.Time `json:"runningTime,omitempty"`

	// StopTime is when the session last stopped. It is absent while the session starts or runs.
	StopTime *metav1.Time `json:"stopTime,omitempty"`

	// RestartedAt is the last value of restartAt that the manager has handled. The value restarted the
	// session, or had no effect because the session had not ended.
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`

	// Conditions: Ready, Reconciling, Stalled, PodReady, WorkspaceReady and SettingsReady. The list
	// is atomic, because only the manager writes it.
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CurrentClass returns the class that was recorded since a user last started the session, or nil.
func (s *ConversationStatus) CurrentClass() *StartedClass {
	if s.SessionClass == nil || s.SessionClass.FirstAttempt != max(1, s.FirstAttempt) {
		return nil
	}
	return s.SessionClass
}

// ReportsNoPod reports whether the status says that the session has no pod.
func (s *ConversationStatus) ReportsNoPod() bool {
	c := meta.FindStatusCondition(s.Conditions, ConditionPodReady)
	return c != nil && c.Reason == ReasonNoPod
}

// BelongsTo reports whether a Conversation belongs to these UserSettings. The Conversation must name
// the UserSettings. If status.owner is set, the UserSettings must have this owner. If only
// status.settingsUID is set, the UserSettings must have this UID. If neither is set, and the person
// who requested the Conversation is known, this person must be the owner of the UserSettings.
func (c *Conversation) BelongsTo(settings *UserSettings) bool {
	owner, requester := settings.OwnerName(), c.Annotations[AnnotationRequestedBy]
	switch {
	case c.Spec.UserSettingsName != settings.Name:
		return false
	case c.Status.Owner != "":
		return c.Status.Owner == owner
	case c.Status.SettingsUID != "":
		return c.Status.SettingsUID == settings.UID
	}
	return requester == "" || requester == owner
}
