package controllers

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// noon is when the pure tests take place.
var noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

func metaTime(seconds int) *metav1.Time { return ptr.To(metav1.NewTime(at(seconds))) }

// aConversation is a Conversation in the making.
type aConversation struct{ *v1alpha1.Conversation }

func makeConversation(namespace, name string) aConversation {
	return aConversation{&v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid"), Generation: 1},
		Spec: v1alpha1.ConversationSpec{
			UserSettingsName: "ada",
			StartDeadline:    &metav1.Duration{Duration: 10 * time.Minute},
			IdleTimeout:      &metav1.Duration{Duration: 30 * time.Minute},
		},
	}}
}

// obj is the Conversation as it is sent to an API server, which gives UIDs itself.
func (c aConversation) obj() *v1alpha1.Conversation {
	c.UID, c.Generation = "", 0
	return c.Conversation
}

func (c aConversation) with(change func(*v1alpha1.ConversationSpec)) aConversation {
	change(&c.Spec)
	return c
}

func (c aConversation) started(seconds int) aConversation {
	c.Status.StartTime = metaTime(seconds)
	c.Status.State = v1alpha1.StateStarting
	return c
}

func (c aConversation) ran(seconds int) aConversation {
	c.Status.RunningTime, c.Status.RanAttempt = metaTime(seconds), attemptOf(c.Status)
	c.Status.State, c.Status.Reason = v1alpha1.StateRunning, v1alpha1.ReasonRunning
	return c
}

// attempt is the present one; the first of somebody's start, unless it is said.
func (c aConversation) attempt(present, first int32) aConversation {
	c.Status.Attempt, c.Status.FirstAttempt = present, first
	return c
}

func (c aConversation) restarts(n int32, cause string) aConversation {
	c.Status.Restarts, c.Status.LastRestart = n, cause
	return c
}

// podRestarts are those of the present pod's process, as they are on record.
func (c aConversation) podRestarts(n int32) aConversation {
	c.Status.PodRestarts, c.Status.Restarts = n, n
	return c
}

func (c aConversation) ranFor(d time.Duration) aConversation {
	c.Status.RanFor = &metav1.Duration{Duration: d}
	return c
}

func (c aConversation) restarted(seconds int) aConversation {
	c.Status.RestartedAt = metaTime(seconds)
	return c
}

func (c aConversation) saying(message string) aConversation {
	c.Status.Message = message
	return c
}

func (c aConversation) because(reason string) aConversation {
	c.Status.Reason = reason
	return c
}

func (c aConversation) stopped(reason string, seconds int) aConversation {
	c.Status.StopTime, c.Status.Reason, c.Status.Message = metaTime(seconds), reason, "it was "+reason
	c.Status.State = v1alpha1.StateStopped
	return c
}

// startOf is what a session of the default class starts with.
func startOf(c *v1alpha1.Conversation, settings v1alpha1.UserSettingsSpec) *sessionStart {
	start := &sessionStart{
		settings: &settings, class: class{name: v1alpha1.DefaultSessionClass}, workspace: v1alpha1.WorkspaceScratch,
		secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SessionName(c.Name)},
			Data: map[string][]byte{session.DocumentFile: nil, session.KeyFile: nil, session.LLMAPIKeyFile: nil,
				"mcp.stdio.0.1": nil},
		},
	}
	if c.Spec.Workspace != nil {
		start.workspace = v1alpha1.WorkspaceOwn
	}
	return start
}

// aPod is a session's pod in the making.
type aPod struct{ *corev1.Pod }

func podOf(c aConversation) aPod {
	start := startOf(c.Conversation, v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: ptr.To("example.com/base:1")})
	pod := buildPod(c.Conversation, start, Options{RuntimeImage: "example.com/runtime:1", Namespace: "parley-system"})
	pod.UID, pod.CreationTimestamp = "pod-uid", metav1.NewTime(at(0))
	return aPod{pod}
}

func (p aPod) condition(t corev1.PodConditionType, ok bool, message string) aPod {
	status := corev1.ConditionFalse
	if ok {
		status = corev1.ConditionTrue
	}
	condition := corev1.PodCondition{Type: t, Status: status, Message: message, LastTransitionTime: metav1.NewTime(at(1))}
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			p.Status.Conditions[i] = condition
			return p
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, condition)
	return p
}

func (p aPod) scheduled() aPod {
	p.Status.Phase = corev1.PodPending
	return p.condition(corev1.PodScheduled, true, "")
}

func (p aPod) sandboxed() aPod {
	return p.scheduled().condition(corev1.PodReadyToStartContainers, true, "")
}

func (p aPod) container(status corev1.ContainerStatus) aPod {
	if status.Name == installContainer {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{status}
	} else {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	}
	return p
}

func (p aPod) waiting(container, reason string) aPod {
	return p.container(corev1.ContainerStatus{Name: container, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "the manifest was not found"},
	}})
}

// sidecar is a container of somebody else's, which goes on when the session has ended.
func (p aPod) sidecar() aPod {
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = append([]corev1.ContainerStatus{{Name: "proxy",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}, p.Status.ContainerStatuses...)
	return p
}

func (p aPod) installCrashed() aPod {
	return p.container(corev1.ContainerStatus{Name: installContainer,
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1,
			Reason: "Error"}}})
}

func (p aPod) installed() aPod {
	return p.container(corev1.ContainerStatus{Name: installContainer,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}})
}

func (p aPod) running(container string) aPod {
	p.Status.Phase = corev1.PodRunning
	return p.container(corev1.ContainerStatus{Name: container, State: corev1.ContainerState{
		Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at(2))},
	}})
}

// crashed: the session's process ended and was started again, n times.
func (p aPod) crashed(n int32, reason string) aPod {
	p.Status.ContainerStatuses[0].RestartCount = n
	p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137,
		Reason: reason, FinishedAt: *metaTime(3)}
	return p
}

// attempt is the one that the pod was made for.
func (p aPod) attempt(n string) aPod {
	p.Labels[v1alpha1.LabelAttempt] = n
	return p
}

func (p aPod) ready() aPod {
	return p.sandboxed().running(sessionContainer).condition(corev1.PodReady, true, "")
}

func (p aPod) ended(exitCode int32, message string, seconds int) aPod {
	p.Status.Phase = corev1.PodSucceeded
	return p.condition(corev1.PodReady, false, "").container(corev1.ContainerStatus{Name: sessionContainer,
		State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode, Message: message,
				FinishedAt: metav1.NewTime(at(seconds))},
		}})
}

func (p aPod) failed(reason string) aPod {
	p.Status.Phase, p.Status.Reason = corev1.PodFailed, reason
	return p.condition(corev1.PodReady, false, "")
}

func (p aPod) terminating() aPod {
	p.DeletionTimestamp = metaTime(5)
	return p
}
