package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestRejectedPodsAreReplacedAfterABackoff(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.reconcile("c")
	k := kubelet{t, ns, "c"}
	reject := func() {
		t.Helper()
		k.set(func(pod aPod) { pod.Failed("NodeShutdown") })
		p.reconcile("c") // records the next attempt
	}
	reject()
	p.reconcile("c") // deletes the rejected pod
	p.reconcile("c")
	if attempt := k.pod().Labels[v1alpha1.LabelAttempt]; attempt != "2" {
		t.Fatalf("the first rejected pod is not replaced at once: the pod has attempt %s", attempt)
	}
	for n, delay := range []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second} {
		reject()
		p.expect("c", v1alpha1.StateStarting, v1alpha1.ReasonBackingOff)
		// A manager that starts during the backoff also waits, and writes nothing.
		version := getConversation(t, ns, "c").ResourceVersion
		now := p.now
		p = newTimedProcess(t, ns, managerClient(t))
		p.clock, p.now = now, now
		if again := p.reconcile("c").RequeueAfter; again <= delay-time.Second || again > delay {
			t.Errorf("requeued in %s, want %s", again, delay)
		}
		c := getConversation(t, ns, "c")
		if c.ResourceVersion != version {
			t.Errorf("the status was written during the backoff: %+v", c.Status)
		}
		if c.Status.Restarts != 0 || c.Status.Losses != int32(n+2) {
			t.Errorf("%d restarts and %d losses are recorded", c.Status.Restarts, c.Status.Losses)
		}
		if err := gone(t, k.object()); err != nil {
			t.Errorf("during the backoff: %v", err)
		}
		p.advance(delay)
		p.reconcile("c")
		if want, got := fmt.Sprint(n+3), k.pod().Labels[v1alpha1.LabelAttempt]; got != want {
			t.Fatalf("after the backoff the pod has attempt %s, want %s", got, want)
		}
	}
	k.set(func(pod aPod) { pod.Ready() })
	if s := p.expect("c", v1alpha1.StateRunning, v1alpha1.ReasonRunning); s.RetryTime != nil || s.Attempt != 6 {
		t.Errorf("recorded %+v", s)
	}
}

func TestEvictedPodsAreReplacedAfterABackoff(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").With(onVolume).Obj())
	k := kubelet{t, ns, "c"}
	evict := func() *corev1.Pod {
		t.Helper()
		k.set(func(p aPod) { p.Ready() })
		awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		pod := k.pod()
		k.set(func(p aPod) { p.Failed("Evicted").Condition(corev1.DisruptionTarget, true, "") })
		return pod
	}
	k.awaitReplacement(evict())
	evict()
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonBackingOff)
	if c.Status.Restarts != 0 || c.Status.Losses != 2 || c.Status.RetryTime == nil {
		t.Errorf("recorded %+v", c.Status)
	}
	awaitEvents(t, ns, v1alpha1.ReasonBackingOff)
	await(t, func() error { // the manager wakes up by itself
		pod := k.object()
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Labels[v1alpha1.LabelAttempt] != "3" {
			return errors.New("still the old pod")
		}
		if time.Now().Before(c.Status.RetryTime.Time) {
			t.Errorf("the pod was created before %s", c.Status.RetryTime)
		}
		return nil
	})
}

func TestASessionThatBacksOffHoldsNoSlot(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	one := int32(1)
	class := createClass(t, ns, v1alpha1.SessionClassSpec{MaxSessionsPerUser: &one})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "rejected").With(ofClass(class)).Obj())
	p := newTimedProcess(t, ns, managerClient(t))
	p.reconcile("rejected")
	k := kubelet{t, ns, "rejected"}
	for range 2 {
		k.set(func(pod aPod) { pod.Failed("NodeShutdown") })
		for range 3 {
			p.reconcile("rejected")
		}
	}
	p.expect("rejected", v1alpha1.StateStarting, v1alpha1.ReasonBackingOff)
	create(t, makeConversation(ns, "next").With(ofClass(class)).Obj())
	p.reconcile("next")
	kubelet{t, ns, "next"}.pod()
	p.advance(time.Minute)
	p.expect("rejected", v1alpha1.StateStarting, v1alpha1.ReasonQueued)
}
