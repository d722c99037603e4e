package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/fakekubelet"
)

var errCrashed = errors.New("the manager crashed")

// crash drops the answer to one request of a manager. If onlyAnswer is false, all later requests of
// the manager fail.
type crash struct {
	method, path string
	onlyAnswer   bool
	dead, done   atomic.Bool
}

func (c *crash) wrap(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if c.dead.Load() {
				return nil, errCrashed
			}
			response, err := next.RoundTrip(r)
			if err == nil && r.Method == c.method && strings.Contains(r.URL.Path, c.path) && !c.done.Swap(true) {
				c.dead.Store(!c.onlyAnswer)
				_ = response.Body.Close()
				return nil, errCrashed
			}
			return response, err
		})
	})
}

// expectOnePod checks that a session runs in one pod, that it was bound to no other pod, and that
// no pod of the pool is bound.
func (w *warmth) expectOnePod(c *v1alpha1.Conversation) {
	w.Helper()
	pod := w.podOf(c)
	for _, call := range w.calls() {
		if call.conversation == c.UID && call.pod != pod.UID && call.attempt == int(max(1, c.Status.Attempt)) {
			w.Errorf("%s was bound to two pods", c.Name)
		}
		if slices.ContainsFunc(w.pods(), func(pod corev1.Pod) bool { return pod.UID == call.pod }) {
			w.Errorf("a bound pod is in the pool")
		}
	}
	if secret := readSecret(w.T, env.Client, w.namespace, c.Name); !owned(secret, c) {
		w.Errorf("the Secret of %s has another owner", c.Name)
	}
}

func TestAWarmStartSurvivesACrashAfterEachStep(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]*crash{
		"claim":  {method: http.MethodPost, path: "/secrets"},
		"volume": {method: http.MethodPatch, path: "/persistentvolumeclaims/"},
		"pod":    {method: http.MethodPatch, path: "/pods/"},
		"status": {method: http.MethodPut, path: "/conversations/"},
	} {
		for _, onlyAnswer := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, only the answer %t", name, onlyAnswer), func(t *testing.T) {
				t.Parallel()
				w := newWarmth(t, 2, func(s *v1alpha1.SessionClassSpec) {
					s.Workspace = &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: "1Gi",
						StorageClassName: ptr.To("fast")}}
				})
				filled := w.manage()
				w.awaitReady(2)
				filled()
				fault := &crash{method: step.method, path: step.path, onlyAnswer: onlyAnswer}
				// The manager fails after the first request with this method and path. The pool is
				// full, so this request belongs to the start of the session.
				stop := w.manage(fault.wrap)
				w.start("c")
				await(t, func() error {
					if !fault.done.Load() {
						return errors.New("the step has not happened")
					}
					return nil
				})
				if !onlyAnswer {
					stop()
					w.manage()
				}
				c := w.awaitRunning("c")
				w.expectOnePod(c)
				if c.Status.Attempt > 1 || !strings.HasPrefix(c.Status.PodName, "warm-") ||
					c.Status.WorkspaceClaimName != c.Status.PodName {
					t.Errorf("runs as attempt %d in %s with the volume %s", c.Status.Attempt, c.Status.PodName,
						c.Status.WorkspaceClaimName)
				}
				w.awaitReady(2)
			})
		}
	}
}

func TestAWarmStartSurvivesACrashAfterTheBind(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	bound := make(chan struct{})
	w.answer = func(bindCall) fakekubelet.Answer {
		select {
		case <-bound:
			return fakekubelet.Accept
		default:
			close(bound)
			return fakekubelet.Lose
		}
	}
	fault := &crash{}
	stop := w.manage(fault.wrap)
	w.awaitReady(1)
	w.start("c")
	<-bound
	fault.dead.Store(true)
	stop()
	w.manage()
	c := w.awaitRunning("c")
	w.expectOnePod(c)
	if calls := w.calls(); len(calls) < 2 || calls[0].pod != calls[len(calls)-1].pod || c.Status.Attempt > 1 {
		t.Errorf("attempt %d after the calls %+v", c.Status.Attempt, calls)
	}
}

func TestABindWithoutAnAnswerIsRepeatedWithTheSamePod(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 2)
	answers := []fakekubelet.Answer{fakekubelet.Lose, fakekubelet.Fail, fakekubelet.Lose}
	w.answer = func(bindCall) fakekubelet.Answer {
		if len(answers) == 0 {
			return fakekubelet.Accept
		}
		answer := answers[0]
		answers = answers[1:]
		return answer
	}
	w.manage()
	w.awaitReady(2)
	w.start("c")
	c := w.awaitRunning("c")
	w.expectOnePod(c)
	if calls := w.calls(); len(calls) != 4 || c.Status.Attempt > 1 {
		t.Errorf("attempt %d after %d calls", c.Status.Attempt, len(calls))
	}
}

// Both managers believe that they are the leader, and work on the same sessions.
func TestTwoManagersBindEachSessionToOnePod(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 4)
	w.manage()
	w.awaitReady(4)
	w.manage()
	const n = 8
	for i := range n {
		w.start(fmt.Sprintf("c-%d", i))
	}
	for i := range n {
		w.expectOnePod(w.awaitRunning(fmt.Sprintf("c-%d", i)))
	}
	pods := map[types.UID]types.UID{}
	for _, call := range w.calls() {
		if other, bound := pods[call.pod]; bound && other != call.conversation {
			t.Errorf("two sessions were sent to pod %s", call.pod)
		}
		pods[call.pod] = call.conversation
	}
	w.awaitReady(4)
}

// The first manager fails between claim and adoption. Then the second session claims the same pod.
func TestOnlyOneOfTwoSessionsThatClaimAPodGetsIt(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	filled := w.manage()
	pod := w.awaitReady(1)[0]
	filled()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: w.class}}
	process := func() *conversationReconciler {
		r := newProcess(managerClient(t), managerClient(t))
		r.options.SessionPort = w.port
		r.warm.update(&pod)
		return r
	}
	w.start("first")
	w.start("second")
	first, second := process(), process()
	first.client = failingPatches{first.client}
	if _, err := first.Reconcile(t.Context(), requestFor(w.namespace, "first")); err == nil {
		t.Fatal("the first session adopted the pod")
	}
	if _, err := second.Reconcile(t.Context(), requestFor(w.namespace, "second")); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(&pod), &pod); err != nil || !owned(&pod,
		getConversation(t, w.namespace, "second")) {
		t.Fatalf("the second session did not get the pod: %v", err)
	}
	// Remove the pool, so that no new warm pod is created. The first session then gets a cold pod.
	change(t, class, func(class *v1alpha1.SessionClass) { class.Spec.Warm = nil })
	w.manage()
	c := w.awaitRunning("first")
	w.expectOnePod(c)
	if c.Status.PodName != "first-session" || c.Status.Attempt > 1 {
		t.Errorf("the first session runs as attempt %d in %s", c.Status.Attempt, c.Status.PodName)
	}
	w.expectOnePod(w.awaitRunning("second"))
}

type failingPatches struct{ client.Client }

func (failingPatches) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return errCrashed
}

func TestALostWarmPodIsReplacedByAColdPod(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]fakekubelet.Answer{
		"before the bind": fakekubelet.Fail, "after the bind": fakekubelet.Lose, "refused": fakekubelet.Refuse,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWarmth(t, 1, func(s *v1alpha1.SessionClassSpec) {
				s.Workspace = &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: "1Gi",
					StorageClassName: ptr.To("fast")}}
			})
			w.answer = func(bindCall) fakekubelet.Answer { return answer }
			w.manage()
			pod := w.awaitReady(1)[0]
			w.start("c")
			if answer != fakekubelet.Refuse {
				await(t, func() error {
					if len(w.calls()) == 0 {
						return errors.New("no call yet")
					}
					return nil
				})
				if err := env.Client.Delete(t.Context(), &pod); err != nil {
					t.Fatal(err)
				}
			}
			c := w.awaitRunning("c")
			w.expectOnePod(c)
			if c.Status.Attempt != 2 || c.Status.PodName != "c-session" || c.Status.Restarts != 0 ||
				c.Status.WorkspaceClaimName != pod.Name {
				t.Errorf("runs as attempt %d in %s with the volume %q after %d restarts", c.Status.Attempt, c.Status.PodName,
					c.Status.WorkspaceClaimName, c.Status.Restarts)
			}
		})
	}
}

func TestASessionDoesNotGetThePodOfAForgedClaim(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 2)
	filled := w.manage()
	pods := w.awaitReady(2)
	filled()
	fault := &crash{method: http.MethodPost, path: "/secrets"}
	stop := w.manage(fault.wrap)
	w.start("c")
	await(t, func() error {
		if !fault.dead.Load() {
			return errors.New("no claim yet")
		}
		return nil
	})
	stop()
	secret := readSecret(t, env.Client, w.namespace, "c")
	for _, pod := range pods {
		if claim := pod.Name + "/" + string(pod.UID); claim != secret.Annotations[v1alpha1.AnnotationPod] {
			secret.Annotations[v1alpha1.AnnotationPod] = claim
			break
		}
	}
	if err := env.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.manage()
	awaitState(t, w.namespace, "c", v1alpha1.StateStarting, v1alpha1.ReasonForeignObject)
	if len(w.awaitReady(2)) != 2 || len(w.calls()) != 0 {
		t.Error("a session got the pod of a forged claim")
	}
}

// heldPods delays the watch events of pods while the mutex hold is locked.
type heldPods struct{ hold sync.RWMutex }

func (h *heldPods) watch(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil && r.URL.Query().Get("watch") != "" && strings.HasSuffix(r.URL.Path, "/pods") {
				response.Body = heldBody{response.Body, &h.hold}
			}
			return response, err
		})
	})
}

// The second manager does not see that the session adopted a pod, nor that the pod still exists.
func TestAManagerWithAStaleCacheStartsNoSecondPod(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 4)
	stop := w.manage()
	w.awaitReady(4)
	stale := &heldPods{}
	w.manage(stale.watch)
	stale.hold.Lock()
	release := sync.OnceFunc(stale.hold.Unlock)
	defer release()
	w.start("c")
	c := w.awaitRunning("c")
	pod := w.podOf(c)
	change(t, pod.DeepCopy(), func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/test"} })
	w.mu.Lock()
	w.answer = func(call bindCall) fakekubelet.Answer {
		err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{})
		if call.attempt != 1 && !apierrors.IsNotFound(err) {
			t.Errorf("attempt %d begins while the pod of attempt 1 exists", call.attempt)
		}
		return fakekubelet.Accept
	}
	w.mu.Unlock()
	change(t, c.DeepCopy(), func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	awaitState(t, w.namespace, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.DeletionTimestamp == nil {
			return errors.New("the pod is not being deleted")
		}
		return gone(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c-session"}})
	})
	stop()
	change(t, c.DeepCopy(), func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	await(t, func() error { // until the stale manager waits for the pod
		if c = getConversation(t, w.namespace, "c"); c.Status.Attempt != 2 || !strings.Contains(c.Status.Message, pod.Name) {
			return fmt.Errorf("attempt %d is %s: %s", c.Status.Attempt, c.Status.Reason, c.Status.Message)
		}
		return nil
	})
	change(t, pod, func(pod *corev1.Pod) { pod.Finalizers = nil })
	release()
	w.expectOnePod(w.awaitRunning("c"))
}

// The second manager still sees the warm pod of the previous attempt, and does not see the warm pod
// of the current attempt yet.
func TestASessionIsNotLostIfTheCacheOnlyShowsItsPreviousPod(t *testing.T) {
	t.Parallel()
	w := newWarmth(t, 1)
	stop := w.manage()
	w.awaitReady(1)
	w.start("c")
	previous := *w.podOf(w.awaitRunning("c"))
	w.awaitReady(1)
	w.suspend("c", true)
	awaitState(t, w.namespace, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	await(t, func() error { return gone(t, previous.DeepCopy()) })
	w.suspend("c", false)
	running := w.awaitRunning("c")
	stop()
	if pod := w.podOf(running); !lifecycle.IsWarm(pod) || pod.Name == previous.Name {
		t.Fatalf("attempt %d runs in %s", running.Status.Attempt, pod.Name)
	}
	stale := staleCache{Client: managerClient(t), stalePods: true, oldPods: []corev1.Pod{previous}}
	w.reconcile(newProcess(stale, managerClient(t)), "c")
	c := getConversation(t, w.namespace, "c")
	if w.expectOnePod(c); c.Status.State != v1alpha1.StateRunning || c.Status.Attempt != running.Status.Attempt {
		t.Errorf("attempt %d is %s, %s: %s", c.Status.Attempt, c.Status.State, c.Status.Reason, c.Status.Message)
	}
}
