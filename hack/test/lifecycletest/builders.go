// Package lifecycletest builds Conversations, pods and settings for tests.
package lifecycletest

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Container names in a session's pod.
const (
	sessionContainer = "session"
	installContainer = "install-runtime"
)

// Noon is the time at which tests without an API server begin.
var Noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

// At returns the time that is this many seconds after Noon.
func At(seconds int) time.Time { return Noon.Add(time.Duration(seconds) * time.Second) }

// MetaTime returns At(seconds) as a metav1.Time.
func MetaTime(seconds int) *metav1.Time { return ptr.To(metav1.NewTime(At(seconds))) }

// Conversation is a builder of Conversations.
type Conversation struct{ *v1alpha1.Conversation }

// MakeConversation returns a Conversation of the user ada.
func MakeConversation(namespace, name string) Conversation {
	return Conversation{&v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid"), Generation: 1},
		Spec: v1alpha1.ConversationSpec{
			UserSettingsName: "ada",
			StartDeadline:    &metav1.Duration{Duration: 10 * time.Minute},
			IdleTimeout:      &metav1.Duration{Duration: 30 * time.Minute},
		},
	}}
}

// Obj returns the Conversation without UID and generation, which the API server assigns.
func (c Conversation) Obj() *v1alpha1.Conversation {
	c.UID, c.Generation = "", 0
	return c.Conversation
}

// With applies the function to the spec.
func (c Conversation) With(change func(*v1alpha1.ConversationSpec)) Conversation {
	change(&c.Spec)
	return c
}

// Started sets the state STARTING, which began at At(seconds).
func (c Conversation) Started(seconds int) Conversation {
	c.Status.StartTime = MetaTime(seconds)
	c.Status.State = v1alpha1.StateStarting
	return c
}

// Ran sets the state RUNNING, which began at At(seconds).
func (c Conversation) Ran(seconds int) Conversation {
	c.Status.RunningTime, c.Status.RanAttempt = MetaTime(seconds), max(1, c.Status.Attempt)
	c.Status.State, c.Status.Reason = v1alpha1.StateRunning, v1alpha1.ReasonRunning
	return c
}

// Attempt sets the current attempt, and the first attempt since a user last started the session.
func (c Conversation) Attempt(current, first int32) Conversation {
	c.Status.Attempt, c.Status.FirstAttempt = current, first
	return c
}

// Restarts sets the number of restarts and the cause of the last restart.
func (c Conversation) Restarts(n int32, cause string) Conversation {
	c.Status.Restarts, c.Status.LastRestart = n, cause
	return c
}

// Losses sets the number of pods lost in a row, the cause of the last loss, and the time of the
// next attempt.
func (c Conversation) Losses(n int32, cause string, retry int) Conversation {
	c.Status.Losses, c.Status.LastRestart, c.Status.RetryTime = n, cause, MetaTime(retry)
	return c
}

// PodRestarts sets the number of process restarts in the current pod.
func (c Conversation) PodRestarts(n int32) Conversation {
	c.Status.PodRestarts, c.Status.Restarts = n, n
	return c
}

// RanFor sets the total time for which earlier attempts were RUNNING.
func (c Conversation) RanFor(d time.Duration) Conversation {
	c.Status.RanFor = &metav1.Duration{Duration: d}
	return c
}

// Restarted sets the last value of restartAt that the manager has handled.
func (c Conversation) Restarted(seconds int) Conversation {
	c.Status.RestartedAt = MetaTime(seconds)
	return c
}

// WithMessage sets the message of the status.
func (c Conversation) WithMessage(message string) Conversation {
	c.Status.Message = message
	return c
}

// WithReason sets the reason of the status.
func (c Conversation) WithReason(reason string) Conversation {
	c.Status.Reason = reason
	return c
}

// Stopped sets a reason and the state STOPPED, which began at At(seconds).
func (c Conversation) Stopped(reason string, seconds int) Conversation {
	c.Status.StopTime, c.Status.Reason, c.Status.Message = MetaTime(seconds), reason, "it was "+reason
	c.Status.State = v1alpha1.StateStopped
	return c
}

// Pod is a builder of session pods.
type Pod struct{ *corev1.Pod }

// PodOf returns the pod of the current attempt. It contains only the fields that affect the status.
func PodOf(c Conversation) Pod {
	return Pod{&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name), UID: "pod-uid",
			CreationTimestamp: metav1.NewTime(At(0)),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c.Conversation,
				v1alpha1.SchemeGroupVersion.WithKind("Conversation"))},
			Labels: map[string]string{
				v1alpha1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelComponent: v1alpha1.ComponentSession,
				v1alpha1.LabelConversation: c.Name, v1alpha1.LabelUserSettings: c.Spec.UserSettingsName,
				v1alpha1.LabelSessionClass: v1alpha1.DefaultSessionClass,
				v1alpha1.LabelWorkspace:    string(v1alpha1.WorkspaceScratch),
				v1alpha1.LabelAttempt:      strconv.Itoa(int(max(1, c.Status.Attempt))),
				v1alpha1.LabelProtocol:     v1alpha1.ProtocolHTTP,
			},
		},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: installContainer, Image: "example.com/runtime:1"}},
			Containers:     []corev1.Container{{Name: sessionContainer, Image: "example.com/base:1"}},
		},
	}}
}

// Condition sets a condition of the pod.
func (p Pod) Condition(t corev1.PodConditionType, ok bool, message string) Pod {
	status := corev1.ConditionFalse
	if ok {
		status = corev1.ConditionTrue
	}
	condition := corev1.PodCondition{Type: t, Status: status, Message: message, LastTransitionTime: metav1.NewTime(At(1))}
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			p.Status.Conditions[i] = condition
			return p
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, condition)
	return p
}

// Scheduled sets the condition PodScheduled.
func (p Pod) Scheduled() Pod {
	p.Status.Phase = corev1.PodPending
	return p.Condition(corev1.PodScheduled, true, "")
}

// Sandboxed sets the conditions of a pod that has its volumes and its network.
func (p Pod) Sandboxed() Pod {
	return p.Scheduled().Condition(corev1.PodReadyToStartContainers, true, "")
}

// Container sets the status of a container.
func (p Pod) Container(status corev1.ContainerStatus) Pod {
	if status.Name == installContainer {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{status}
	} else {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	}
	return p
}

// Waiting sets a container to waiting, with a reason.
func (p Pod) Waiting(container, reason string) Pod {
	return p.Container(corev1.ContainerStatus{Name: container, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "the manifest was not found"},
	}})
}

// Sidecar adds an injected container that still runs when the session has ended.
func (p Pod) Sidecar() Pod {
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = append([]corev1.ContainerStatus{{Name: "proxy",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}, p.Status.ContainerStatuses...)
	return p
}

// SidecarEnded sets the injected container to terminated.
func (p Pod) SidecarEnded(exitCode int32) Pod {
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode}}
	return p
}

// InstallCrashed sets the install container to failed.
func (p Pod) InstallCrashed() Pod {
	return p.Container(corev1.ContainerStatus{Name: installContainer,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1,
			Reason: "Error"}}})
}

// Installed sets the install container to completed.
func (p Pod) Installed() Pod {
	return p.Container(corev1.ContainerStatus{Name: installContainer,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}})
}

// Running sets a container to running.
func (p Pod) Running(container string) Pod {
	p.Status.Phase = corev1.PodRunning
	return p.Container(corev1.ContainerStatus{Name: container, State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(At(2))},
	}})
}

// Crashed sets the number of restarts of the session's process, and the reason of the last restart.
func (p Pod) Crashed(n int32, reason string) Pod {
	p.Status.ContainerStatuses[0].RestartCount = n
	p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137,
		Reason: reason, FinishedAt: *MetaTime(3)}
	return p
}

// Attempt sets the pod's attempt label.
func (p Pod) Attempt(n string) Pod {
	p.Labels[v1alpha1.LabelAttempt] = n
	return p
}

// Warm sets the fields of a pod that was created as a warm pod with this name.
func (p Pod) Warm(name string) Pod {
	p.Name, p.Labels[v1alpha1.LabelWarm] = name, "template"
	return p
}

// Created sets the creation time to At(seconds).
func (p Pod) Created(seconds int) Pod {
	p.CreationTimestamp = metav1.NewTime(At(seconds))
	return p
}

// Ready sets the pod to ready, with a running session.
func (p Pod) Ready() Pod {
	return p.Sandboxed().Running(sessionContainer).Condition(corev1.PodReady, true, "")
}

// Ended sets the session's process to terminated, at the time At(seconds).
func (p Pod) Ended(exitCode int32, message string, seconds int) Pod {
	p.Status.Phase = corev1.PodSucceeded
	return p.Condition(corev1.PodReady, false, "").Container(corev1.ContainerStatus{Name: sessionContainer,
		State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode, Message: message,
				FinishedAt: metav1.NewTime(At(seconds))},
		}})
}

// Failed sets the phase Failed with a reason.
func (p Pod) Failed(reason string) Pod {
	p.Status.Phase, p.Status.Reason = corev1.PodFailed, reason
	return p.Condition(corev1.PodReady, false, "")
}

// Phase sets the phase of the pod.
func (p Pod) Phase(phase corev1.PodPhase) Pod {
	p.Status.Phase = phase
	return p
}

// Terminating marks the pod as being deleted.
func (p Pod) Terminating() Pod {
	p.DeletionTimestamp = MetaTime(5)
	return p
}
