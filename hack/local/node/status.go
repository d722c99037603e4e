package node

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

type observation struct {
	address  string                 // the pod's address; empty until its volumes exist
	phase    corev1.PodPhase        // Pending, Running or Succeeded
	state    corev1.ContainerState  // state of the session's container
	last     *corev1.ContainerState // state before the last restart
	restarts int32
	started  bool // the startup probe succeeded
	ready    bool // the readiness probe succeeds
	since    metav1.Time
}

// podStatus builds the status that a kubelet would report. A condition that did not change keeps
// its transition time.
func podStatus(pod *corev1.Pod, o observation, now metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{
		Phase: o.phase, StartTime: &o.since, QOSClass: pod.Status.QOSClass,
		Conditions: pod.Status.Conditions, ObservedGeneration: pod.Generation,
	}
	prepared := o.address != ""
	if prepared {
		status.PodIP, status.PodIPs, status.HostIP = o.address, []corev1.PodIP{{IP: o.address}}, "127.0.0.1"
	}
	succeeded := o.phase == corev1.PodSucceeded
	set := func(kind corev1.PodConditionType, holds bool, reason string) {
		status.Conditions = withCondition(status.Conditions, kind, holds, reason, now)
	}
	notReady := map[bool]string{true: "PodCompleted", false: "ContainersNotReady"}[succeeded]
	set(corev1.PodReadyToStartContainers, prepared && !succeeded, "")
	set(corev1.PodInitialized, prepared, "ContainersNotInitialized")
	set(corev1.ContainersReady, o.ready, notReady)
	set(corev1.PodReady, o.ready, notReady)

	for _, c := range pod.Spec.InitContainers {
		// The init container copies the runtime into the pod. The node has the runtime on disk, so
		// it does not run the init container, but reports it as completed.
		done := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		if prepared {
			done = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: o.since,
				FinishedAt: o.since}}
		}
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Ready: prepared, Started: ptr.To(false), State: done,
		})
	}
	for _, c := range pod.Spec.Containers {
		s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, State: o.state, RestartCount: o.restarts, Ready: o.ready,
			Started: &o.started}
		if o.last != nil {
			s.LastTerminationState = *o.last
		}
		status.ContainerStatuses = append(status.ContainerStatuses, s)
	}
	return status
}

// lostStatus returns the status of a pod whose process ended when an earlier run of the node
// stopped.
func lostStatus(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	status := *pod.Status.DeepCopy()
	status.Phase, status.Reason, status.Message = corev1.PodFailed, "NodeLost",
		"The local node was stopped while the pod ran"
	for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady} {
		status.Conditions = withCondition(status.Conditions, kind, false, "PodFailed", now)
	}
	for i := range status.ContainerStatuses {
		c := &status.ContainerStatuses[i]
		c.Ready, c.Started = false, ptr.To(false)
		if c.State.Terminated == nil {
			c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The process is gone", FinishedAt: now,
			}}
		}
	}
	return status
}

func withCondition(conditions []corev1.PodCondition, kind corev1.PodConditionType, holds bool, reason string,
	now metav1.Time) []corev1.PodCondition {
	want := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now}
	if !holds {
		want.Status, want.Reason = corev1.ConditionFalse, reason
	}
	out := make([]corev1.PodCondition, 0, len(conditions)+1)
	for _, c := range conditions {
		if c.Type != kind {
			out = append(out, c)
		} else if c.Status == want.Status {
			want.LastTransitionTime = c.LastTransitionTime
		}
	}
	return append(out, want)
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// unsupported checks whether a pod can run on this node. If it cannot, unsupported returns a
// waiting reason that kubelets also use, and a message.
func unsupported(pod *corev1.Pod) (reason, message string) {
	if len(pod.Spec.Containers) != 1 {
		return "CreateContainerConfigError", "a local node runs only pods with one container"
	}
	c := pod.Spec.Containers[0]
	if len(c.Command) == 0 || !strings.HasSuffix(c.Command[0], "/supervisor") {
		return "ErrImageNeverPull", fmt.Sprintf("the image %s has its own runtime and cannot run here, because sessions "+
			"are local processes: remove the runtime image from the UserSettings", c.Image)
	}
	for _, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef == nil {
			return "CreateContainerConfigError", fmt.Sprintf("a local node cannot resolve the variable %s", e.Name)
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.Secret == nil && v.ConfigMap == nil && v.EmptyDir == nil && v.PersistentVolumeClaim == nil && v.Image == nil &&
			!ofConfigMaps(v.Projected) {
			return "CreateContainerConfigError", fmt.Sprintf("a local node cannot provide the volume %s", v.Name)
		}
	}
	return "", ""
}
