package node

import (
	"context"
	"errors"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// stopped says why a pod must stop. It is the cause with which the pod's context ends.
type stopped struct {
	cause string
	grace time.Duration // between SIGTERM and SIGKILL
}

func (s *stopped) Error() string { return s.cause }

const (
	nodeStops  = "the node stops"
	podDeleted = "the pod is being deleted"
	podGone    = "the pod is no longer in the API server"
)

const (
	// stopGrace is the grace period of processes when the node itself stops.
	stopGrace = 10 * time.Second
	// writeTimeout limits a write to the API server. A write does not use the pod's context,
	// because this context may have ended.
	writeTimeout = 10 * time.Second
	// retryDelay is the pause before the node tries again to bind a pod or to read a Secret or
	// ConfigMap.
	retryDelay = time.Second
	// The first restart after a crash is immediate. Later restarts are delayed, but less than a
	// kubelet delays them, because a developer is watching.
	firstBackOff = time.Second
	lastBackOff  = time.Minute
	// The restart delay is reset when a process has run for this time.
	settled = 5 * time.Minute
)

// podRun runs one pod on this node. Its context ends with a *stopped as the cause.
type podRun struct {
	node    *Node
	pod     *corev1.Pod
	ctx     context.Context
	stop    context.CancelCauseFunc
	seen    observation
	backOff time.Duration
}

func newPodRun(ctx context.Context, n *Node, pod *corev1.Pod) *podRun {
	r := &podRun{node: n, pod: pod}
	// The pod's context must end with a *stopped as its cause, so only r.stop may end this context.
	// The end of ctx therefore calls r.stop.
	r.ctx, r.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { r.stop(&stopped{nodeStops, stopGrace}) })
	r.seen = observation{phase: corev1.PodPending, since: metav1.Now(), state: waiting("ContainerCreating", "")}
	return r
}

func (r *podRun) handle(fromEarlierRun bool) {
	switch over := r.pod.Status.Phase == corev1.PodSucceeded || r.pod.Status.Phase == corev1.PodFailed; {
	case over:
	case fromEarlierRun:
		r.write(func(pod *corev1.Pod) corev1.PodStatus { return lostStatus(pod, metav1.Now()) })
	default:
		r.run()
	}
	<-r.ctx.Done()
	r.leave(r.why())
}

func (r *podRun) why() *stopped {
	var s *stopped
	_ = errors.As(context.Cause(r.ctx), &s)
	return s
}

// run binds the pod, prepares its volumes and variables, and runs its process.
func (r *podRun) run() {
	cannotBind := func(err error) { r.node.Say("pod %s/%s could not be bound: %v", r.pod.Namespace, r.pod.Name, err) }
	if !r.retry(r.bind, cannotBind) {
		return
	}
	if reason, message := unsupported(r.pod); reason != "" {
		r.seen.state = waiting(reason, message)
		r.report()
		return
	}
	r.report()
	noVolumes := func(err error) {
		r.seen.state = waiting("ContainerCreating", err.Error())
		r.report()
	}
	if !r.retry(func() error { return r.node.makeVolumes(r.ctx, r.pod) }, noVolumes) {
		return
	}
	noVariables := func(err error) {
		r.seen.state = waiting("CreateContainerConfigError", err.Error())
		r.report()
	}
	if !r.retry(func() error { _, err := r.environment(); return err }, noVariables) {
		return
	}
	var err error
	if r.seen.address, err = r.node.addresses.take(); err != nil {
		r.seen.state = waiting("CreateContainerError", err.Error())
		r.report()
		return
	}
	defer r.node.addresses.give(r.seen.address)
	r.runProcess()
}

func (r *podRun) runProcess() {
	for {
		began := time.Now()
		end := r.runOnce()
		r.seen.started, r.seen.ready = false, false
		if r.ctx.Err() != nil {
			return // the node stopped the process, so its exit status means nothing
		}
		ended := corev1.ContainerState{Terminated: end}
		if end.ExitCode == 0 {
			r.seen.phase, r.seen.state = corev1.PodSucceeded, ended
			r.report()
			r.node.removeSecrets(r.pod)
			return
		}
		if time.Since(began) > settled {
			r.backOff = 0
		}
		r.seen.last = &ended
		if r.backOff == 0 {
			r.seen.state = ended
		} else {
			r.seen.state = waiting("CrashLoopBackOff", "restarting in "+r.backOff.String())
		}
		r.report()
		if cluster.Sleep(r.ctx, r.backOff) != nil {
			return
		}
		r.backOff = min(max(2*r.backOff, firstBackOff), lastBackOff)
		r.seen.restarts++
	}
}

// leave confirms to the API server that a deleted pod has stopped. If the node itself stops, the
// pod stays in the API server, and the next run of the node reports the pod as lost.
func (r *podRun) leave(why *stopped) {
	switch why.cause {
	case podDeleted:
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		err := r.node.Client.CoreV1().Pods(r.pod.Namespace).Delete(ctx, r.pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(r.pod.UID)),
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			r.node.Say("pod %s/%s could not be removed: %v", r.pod.Namespace, r.pod.Name, err)
		}
		_ = os.RemoveAll(r.node.podDir(r.pod))
	case podGone:
		_ = os.RemoveAll(r.node.podDir(r.pod))
	default:
		r.node.removeSecrets(r.pod)
	}
}

func (r *podRun) bind() error {
	if r.pod.Spec.NodeName != "" {
		return nil
	}
	pods := r.node.Client.CoreV1().Pods(r.pod.Namespace)
	err := pods.Bind(r.ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.pod.Namespace, Name: r.pod.Name, UID: r.pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: r.node.Name},
	}, metav1.CreateOptions{})
	if apierrors.IsConflict(err) {
		// An earlier binding may have succeeded although its response was lost.
		if pod, getErr := pods.Get(r.ctx, r.pod.Name, metav1.GetOptions{}); getErr == nil && pod.UID == r.pod.UID &&
			pod.Spec.NodeName == r.node.Name {
			return nil
		}
	}
	return err
}

// retry repeats a function until it succeeds. It reports an error only if the text differs from the
// previous error. It returns false if the pod's context ended.
func (r *podRun) retry(try func() error, report func(error)) bool {
	for reported := ""; ; {
		err := try()
		if err == nil || r.ctx.Err() != nil {
			return err == nil
		}
		if err.Error() != reported {
			reported = err.Error()
			report(err)
		}
		if cluster.Sleep(r.ctx, retryDelay) != nil {
			return false
		}
	}
}

func (r *podRun) report() {
	seen := r.seen
	r.write(func(pod *corev1.Pod) corev1.PodStatus { return podStatus(pod, seen, metav1.Now()) })
}

func (r *podRun) write(status func(*corev1.Pod) corev1.PodStatus) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), writeTimeout)
	defer cancel()
	pods := r.node.Client.CoreV1().Pods(r.pod.Namespace)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pod, err := pods.Get(ctx, r.pod.Name, metav1.GetOptions{})
		if err != nil || pod.UID != r.pod.UID {
			return err
		}
		pod.Status = status(pod)
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		r.node.Say("could not write the status of pod %s/%s: %v", r.pod.Namespace, r.pod.Name, err)
	}
}
