package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

func withVolume(s *v1alpha1.SessionClassSpec) {
	s.Workspace = &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")}}
}

// process returns a reconciler without a cache. It knows the given warm pods.
func (w *warmth) process(pods ...corev1.Pod) *conversationReconciler {
	w.Helper()
	r := newProcess(managerClient(w.T), managerClient(w.T))
	r.options.SessionPort = w.port
	for i := range pods {
		r.warm.update(&pods[i])
	}
	return r
}

// reconcile reconciles a Conversation several times. Errors are retried.
func (w *warmth) reconcile(r *conversationReconciler, name string) {
	w.Helper()
	for range 4 {
		if _, err := r.Reconcile(w.Context(), requestFor(w.namespace, name)); err != nil {
			w.Log(err)
		}
	}
}

func (w *warmth) reconcileUntilRunning(r *conversationReconciler, name string) {
	w.Helper()
	await(w.T, func() error {
		w.reconcile(r, name)
		if c := getConversation(w.T, w.namespace, name); c.Status.State != v1alpha1.StateRunning {
			return fmt.Errorf("%s %s %s", c.Status.State, c.Status.Reason, c.Status.Message)
		}
		return nil
	})
}

func (w *warmth) suspend(name string, suspend bool) {
	w.Helper()
	change(w.T, getConversation(w.T, w.namespace, name), func(c *v1alpha1.Conversation) { c.Spec.Suspend = suspend })
}

// hookedPatches calls a function before each patch of a pod. If the function returns an error, the
// patch fails.
type hookedPatches struct {
	client.Client
	before func() error
}

func (h hookedPatches) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if _, isPod := o.(*corev1.Pod); isPod {
		if err := h.before(); err != nil {
			return err
		}
	}
	return h.Client.Patch(ctx, o, p, opts...)
}

// A manager stalls before it adopts the claimed pod. Meanwhile, another manager stops the session
// and starts it in a new pod.
func TestAStalledManagerCannotAdoptAPodAfterTheSessionStopped(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1, withVolume)
	filled := w.manage()
	pod := w.awaitReady(1)[0]
	filled()
	w.start("c")
	stalled, next := w.process(pod), w.process()
	patches := 0
	stalled.client = hookedPatches{stalled.client, func() error {
		if patches++; patches > 1 {
			return nil
		}
		w.suspend("c", true)
		w.reconcile(next, "c")
		w.suspend("c", false)
		w.reconcileUntilRunning(next, "c")
		return nil
	}}
	if _, err := stalled.Reconcile(t.Context(), requestFor(w.namespace, "c")); err == nil || patches == 0 {
		t.Errorf("the stalled manager adopted the pod (%d patches)", patches)
	}
	c := getConversation(t, w.namespace, "c")
	if w.expectOnePod(c); c.Status.PodName != "c-session" || len(w.calls()) != 0 {
		t.Errorf("attempt %d runs in %s after %d Binds", c.Status.Attempt, c.Status.PodName, len(w.calls()))
	}
	var volumes corev1.PersistentVolumeClaimList
	if err := env.Client.List(t.Context(), &volumes, client.InNamespace(w.namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range volumes.Items {
		if v := &volumes.Items[i]; owned(v, c) && v.Name == pod.Name && v.DeletionTimestamp == nil {
			t.Errorf("the volume of the pod stays")
		}
	}
}

// A manager is killed between the claim and the adoption of a pod. Only the Secret of the session
// names the pod then, so the next manager regards the pod as free.
func TestASurplusPodIsDeletedBeforeAClaimedPod(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 5)
	filled := w.manage()
	ready := w.awaitReady(5)
	filled()
	w.start("c")
	killed, next := w.process(ready...), w.process(ready...)
	next.options.Namespaces = []string{w.namespace}
	trimmed := false
	killed.client = hookedPatches{killed.client, func() error {
		if trimmed {
			return nil
		}
		trimmed = true
		w.changeClass(func(s *v1alpha1.SessionClassSpec) { s.Warm.Size = 1 })
		_, err := newWarmPoolReconciler(next).Reconcile(t.Context(), requestFor(w.namespace, w.class))
		w.awaitReady(1)
		return errors.Join(err, errors.New("killed"))
	}}
	if _, err := killed.Reconcile(t.Context(), requestFor(w.namespace, "c")); err == nil || !trimmed {
		t.Fatal("the manager was not killed before the adoption")
	}
	w.reconcileUntilRunning(next, "c")
	if c := getConversation(t, w.namespace, "c"); c.Status.Attempt > 1 || c.Status.PodName == "c-session" {
		t.Errorf("attempt %d runs in %s", c.Status.Attempt, c.Status.PodName)
	}
}

// hookedCreations calls a function before each creation of an object of one type.
type hookedCreations[T client.Object] struct {
	client.Client
	before func()
}

func (h hookedCreations[T]) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if _, is := o.(T); is {
		h.before()
	}
	return h.Client.Create(ctx, o, opts...)
}

// A manager stalls before it creates the pod. Meanwhile, another manager runs the session, stops it
// and starts it again.
func TestAStalledManagerKeepsThePodOfALaterAttempt(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	w.start("c")
	stalled, next := w.process(), w.process()
	stalled.client = hookedCreations[*corev1.Pod]{stalled.client, sync.OnceFunc(func() {
		w.reconcileUntilRunning(next, "c")
		w.suspend("c", true)
		w.reconcile(next, "c")
		w.suspend("c", false)
		w.reconcileUntilRunning(next, "c")
	})}
	if _, err := stalled.Reconcile(t.Context(), requestFor(w.namespace, "c")); err == nil {
		t.Error("the stalled manager did not notice the later attempt")
	}
	c := getConversation(t, w.namespace, "c")
	if pod := w.podOf(c); c.Status.Attempt != 2 || pod.DeletionTimestamp != nil {
		t.Errorf("the pod of attempt %d is being deleted", c.Status.Attempt)
	}
}

// A warm pod that an earlier attempt adopted is removed, even if the current attempt has a pod.
func TestAnAdoptedPodOfAnEarlierAttemptIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	filled := w.manage()
	pod := w.awaitReady(1)[0]
	filled()
	w.start("c", func(s *v1alpha1.ConversationSpec) { s.Suspend = true })
	r := w.process()
	w.reconcile(r, "c")
	w.suspend("c", false)
	w.reconcileUntilRunning(r, "c")
	c := getConversation(t, w.namespace, "c")
	change(t, pod.DeepCopy(), func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(c,
			v1alpha1.SchemeGroupVersion.WithKind("Conversation"))}
		pod.Labels[v1alpha1.LabelConversation], pod.Labels[v1alpha1.LabelAttempt] = "c", "1"
	})
	w.reconcile(r, "c")
	await(t, func() error { return gone(t, pod.DeepCopy()) })
	c = getConversation(t, w.namespace, "c")
	if c.Status.State != v1alpha1.StateRunning || w.podOf(c).Name != "c-session" {
		t.Errorf("the session is %s in %s", c.Status.State, c.Status.PodName)
	}
}

func TestAnUnusableVolumeOfAWarmPodDoesNotBlockAStart(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*warmth, corev1.Pod){
		"being deleted": func(w *warmth, pod corev1.Pod) {
			volume := w.volumeOf(pod)
			change(w.T, volume, func(v *corev1.PersistentVolumeClaim) { v.Finalizers = []string{"example.com/in-use"} })
			if err := env.Client.Delete(w.Context(), volume); err != nil {
				w.Fatal(err)
			}
		},
		"missing": func(w *warmth, pod corev1.Pod) {
			change(w.T, w.volumeOf(pod), func(v *corev1.PersistentVolumeClaim) { v.Finalizers = nil })
			if err := client.IgnoreNotFound(env.Client.Delete(w.Context(), w.volumeOf(pod))); err != nil {
				w.Fatal(err)
			}
		},
		"of a deleted session": func(w *warmth, pod corev1.Pod) {
			w.start("first")
			r := w.process(pod)
			r.client = hookedPatches{r.client, func() error { return errCrashed }}
			if _, err := r.Reconcile(w.Context(), requestFor(w.namespace, "first")); !errors.Is(err, errCrashed) {
				w.Fatal(err)
			}
			if err := env.Client.Delete(w.Context(), getConversation(w.T, w.namespace, "first")); err != nil {
				w.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWarmth(t, 1, withVolume)
			filled := w.manage()
			pod := w.awaitReady(1)[0]
			filled()
			spoil(w, pod)
			w.manage()
			w.start("c")
			c := w.awaitRunning("c")
			if w.expectOnePod(c); c.Status.PodName == pod.Name {
				t.Error("the session has the pod with the unusable volume")
			}
			await(t, func() error { return gone(t, pod.DeepCopy()) })
		})
	}
}

func (w *warmth) volumeOf(pod corev1.Pod) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: pod.Name}}
}

// The manager does not see yet that the pod was deleted or that its process ended.
func TestAPodThatEndedIsNotAdopted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*warmth, *corev1.Pod) error{
		"deleted": func(w *warmth, pod *corev1.Pod) error { return env.Client.Delete(w.Context(), pod) },
		"restarted": func(w *warmth, pod *corev1.Pod) error {
			return w.kubelet.Restart(w.Context(), client.ObjectKeyFromObject(pod))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWarmth(t, 1)
			filled := w.manage()
			pod := w.awaitReady(1)[0]
			filled()
			ended := pod.DeepCopy()
			change(t, ended, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/test"} })
			if err := end(w, ended); err != nil {
				t.Fatal(err)
			}
			w.start("c")
			r := w.process(pod)
			await(t, func() error {
				w.reconcile(r, "c")
				if c := getConversation(t, w.namespace, "c"); c.Status.State != v1alpha1.StateRunning {
					return fmt.Errorf("%s %s %s", c.Status.State, c.Status.Reason, c.Status.Message)
				}
				return nil
			})
			c := getConversation(t, w.namespace, "c")
			if w.expectOnePod(c); c.Status.PodName != "c-session" || c.Status.Attempt > 1 || len(w.calls()) > 0 {
				t.Errorf("attempt %d runs in %s after %d Binds", c.Status.Attempt, c.Status.PodName, len(w.calls()))
			}
			change(t, pod.DeepCopy(), func(p *corev1.Pod) { p.Finalizers = nil })
		})
	}
}

// The pod is deleted while it handles the Bind request.
func TestTheManagerForgetsTheBindRequestOfADeletedPod(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	filled := w.manage()
	pod := w.awaitReady(1)[0]
	filled()
	w.start("c")
	r := w.process(pod)
	w.answer = func(bindCall) fakekubelet.Answer {
		if err := env.Client.Delete(t.Context(), pod.DeepCopy(), client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
		r.warm.removed(pod.UID)
		return fakekubelet.Fail
	}
	if _, err := r.Reconcile(t.Context(), requestFor(w.namespace, "c")); err != nil {
		t.Fatal(err)
	}
	<-r.calls.Done()
	if _, known := r.binds.results.Load(pod.UID); known || len(w.calls()) != 1 {
		t.Errorf("the result is known: %t, after %d Binds", known, len(w.calls()))
	}
}

func TestAWarmPodIsFreeAgainAfterAFailedAdoption(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 2)
	filled := w.manage()
	all := w.awaitReady(2)
	filled()
	w.start("c")
	r := w.process(all...)
	r.client = failingPatches{r.client}
	w.reconcile(r, "c")
	if err := env.Client.Delete(t.Context(), getConversation(t, w.namespace, "c")); err != nil {
		t.Fatal(err)
	}
	w.reconcile(r, "c")
	pods, _ := r.warm.pool(poolKey{w.namespace, w.class}, time.Now())
	for _, pod := range pods {
		if pod.claimed {
			t.Errorf("pod %s is claimed by a deleted session", pod.name)
		}
	}
}
