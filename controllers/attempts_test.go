package controllers

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func withTask(namespace, name string) aConversation {
	return makeConversation(namespace, name).With(func(s *v1alpha1.ConversationSpec) {
		s.InitialUserMsg = ptr.To(
			"do it")
	})
}

func onVolume(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} }

func TestTooManyCrashesFailTheSession(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	for n := range int32(6) {
		k.set(func(p aPod) {
			p.Condition(corev1.PodReady, false, "").Waiting(lifecycle.SessionContainer, "CrashLoopBackOff").
				Crashed(n+1, "OOMKilled")
		})
		await(t, func() error {
			if got := getConversation(t, ns, "c").Status; got.Restarts != n+1 || got.LastRestart != "OOMKilled" {
				return fmt.Errorf("%d restarts, the last one caused by %q", got.Restarts, got.LastRestart)
			}
			return nil
		})
	}
	c := awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonFailed)
	if !strings.Contains(c.Status.Message, "OOMKilled") {
		t.Errorf("the message is %q", c.Status.Message)
	}
	k.release()
	await(t, func() error { return gone(t, k.object()) })
}

func TestALostPodIsReplacedOnlyIfItsFilesAreKept(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	lose := func(c aConversation) kubelet {
		create(t, c.Obj())
		k := kubelet{t, ns, c.Name}
		k.start()
		awaitState(t, ns, c.Name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		if err := env.Client.Delete(t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		return k
	}
	t.Run("the work resumes if the files are kept", func(t *testing.T) {
		k := lose(withTask(ns, "kept").With(onVolume))
		await(t, func() error {
			if got := k.pod().Labels[v1alpha1.LabelAttempt]; got != "2" {
				return fmt.Errorf("the pod has attempt %q", got)
			}
			return nil
		})
		k.start()
		c := awaitState(t, ns, "kept", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		if c.Status.Attempt != 2 || c.Status.Restarts != 1 || c.Status.RanAttempt != 2 {
			t.Errorf("recorded %+v", c.Status)
		}
	})
	t.Run("the work is not repeated if the files are lost", func(t *testing.T) {
		k := lose(withTask(ns, "gone"))
		c := awaitState(t, ns, "gone", v1alpha1.StateStopped, v1alpha1.ReasonLost)
		await(t, func() error { return gone(t, secretWith(ns, v1alpha1.SessionName("gone"), "")) })
		if err := gone(t, k.object()); err != nil {
			t.Error(err)
		}
		change(t, c, func(c *v1alpha1.Conversation) { c.Spec.RestartAt = ptr.To(metav1.Now()) })
		k.start()
		c = awaitState(t, ns, "gone", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		if c.Status.Attempt != 2 || c.Status.FirstAttempt != 2 || c.Status.Restarts != 0 {
			t.Errorf("recorded %+v", c.Status)
		}
	})
}

func TestASidecarDoesNotHideTheEndOfASession(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.set(func(p aPod) { p.Ended(0, `{"reason":"Completed"}`, 0).Sidecar() })
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	k.release() // the sidecar would not stop by itself, so the pod is deleted
}

func TestADeletedConversationWithAFinalizerLosesItsPod(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	conv := withTask(ns, "c").Obj()
	conv.Finalizers = []string{"example.com/hold"}
	create(t, userSettings(ns, "ada"), conv)
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if err := env.Client.Delete(t.Context(), conv); err != nil {
		t.Fatal(err)
	}
	k.release()
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonDeleted)
	change(t, conv, func(c *v1alpha1.Conversation) { c.Finalizers = nil })
}

func TestAPodWithoutLabelsIsReplaced(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	conv := makeConversation(ns, "c").Obj()
	create(t, userSettings(ns, "ada"), conv)
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	first := k.pod()
	change(t, k.pod(), func(p *corev1.Pod) { p.Labels = nil })
	k.release() // no network policy selects this pod, so it is replaced
	k.awaitReplacement(first)
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)

	t.Run("a suspended session's pod without labels is deleted", func(t *testing.T) {
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
		change(t, k.pod(), func(p *corev1.Pod) { p.Labels = nil })
		k.release()
		awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	})
}

func TestANewManagerRemovesAPodThatLostItsLabels(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	stop := startManager(t, ns)
	conv := makeConversation(ns, "c").Obj()
	create(t, userSettings(ns, "ada"), conv)
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	stop()
	change(t, k.pod(), func(p *corev1.Pod) { p.Labels = nil })
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	startManager(t, ns)
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	k.release()
}

func TestASessionStartsWithTheCurrentSettings(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	var hold sync.RWMutex
	slow := func(cfg *rest.Config) {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				response, err := next.RoundTrip(r)
				if err == nil && r.URL.Query().Get("watch") != "" && strings.HasSuffix(r.URL.Path, "/usersettings") {
					response.Body = heldBody{response.Body, &hold}
				}
				return response, err
			})
		})
	}
	settings := userSettings(ns, "ada")
	settings.Spec.LLMModel = ptr.To("old")
	create(t, settings)
	startManager(t, ns, slow)
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	hold.Lock() // the cache gets no more changes of settings
	defer hold.Unlock()
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("new") })
	create(t, makeConversation(ns, "c").Obj())
	await(t, func() error { return startedWith(t, kubelet{t, ns, "c"}, "", "new", "example.com/parley:1") })
}

func TestAStartWaitsUntilTheOldVolumeIsDeleted(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	conv := makeConversation(ns, "c").With(onVolume).Obj()
	create(t, userSettings(ns, "ada"), conv)
	k := kubelet{t, ns, "c"}
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	k.release()
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-workspace"}}
	change(t, claim, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = []string{"example.com/hold"} })
	if err := env.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	await(t, func() error {
		if c := getConversation(t, ns, "c"); !strings.Contains(c.Status.Message, "PersistentVolumeClaim c-workspace") {
			return fmt.Errorf("%s %q", c.Status.Reason, c.Status.Message)
		}
		return nil
	})
	change(t, claim, func(c *corev1.PersistentVolumeClaim) { c.Finalizers = nil })
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
}

// crashingWrite makes the nth write of a manager fail, before or after it takes effect. All later
// writes fail too.
type crashingWrite struct {
	n       int
	applied bool

	mu      sync.Mutex
	writes  int
	crashed chan struct{}
}

func (f *crashingWrite) inject(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/events") {
				return next.RoundTrip(r)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.writes++
			switch {
			case f.writes == f.n:
				// Close f.crashed only after the request has ended. The test then stops the manager, which
				// cancels requests in flight.
				defer close(f.crashed)
				if f.applied {
					if response, err := next.RoundTrip(r); err == nil {
						_ = response.Body.Close()
					}
				}
				return nil, errors.New("crashed")
			case f.writes > f.n:
				return nil, errors.New("crashed")
			}
			return next.RoundTrip(r)
		})
	})
}

// After the crash, another manager continues. Every attempt must have exactly one pod.
func TestACrashAtAnyWriteDoesNotChangeTheLifecycle(t *testing.T) {
	t.Parallel()
	for _, applied := range []bool{false, true} {
		for n := 1; n <= lifecycleWrites; n++ {
			t.Run(fmt.Sprintf("write %d, applied %t", n, applied), func(t *testing.T) {
				t.Parallel()
				ns := env.Namespace(t, nil)
				f := &crashingWrite{n: n, applied: applied, crashed: make(chan struct{})}
				stop := startManager(t, ns, f.inject)
				done := make(chan struct{})
				defer close(done)
				go func() {
					select {
					case <-f.crashed:
						stop()
						startManager(t, ns)
					case <-done:
					}
				}()
				runLifecycle(t, ns)
			})
		}
	}
}

// lifecycleWrites is the number of the manager's writes in runLifecycle.
const lifecycleWrites = 24

func runLifecycle(t *testing.T, ns string) {
	t.Helper()
	conv := withTask(ns, "c").With(onVolume).Obj()
	create(t, userSettings(ns, "ada"), conv)
	k := kubelet{t, ns, "c"}
	seen := map[string]string{} // the pod of each attempt
	run := func(attempt string) {
		t.Helper()
		await(t, func() error {
			pod := k.pod()
			if got := pod.Labels[v1alpha1.LabelAttempt]; got != attempt || pod.DeletionTimestamp != nil {
				return fmt.Errorf("the pod has attempt %s, want %s", got, attempt)
			}
			if before := seen[attempt]; before != "" && before != string(pod.UID) {
				t.Fatalf("attempt %s has a second pod", attempt)
			}
			seen[attempt] = string(pod.UID)
			return nil
		})
		k.start()
		c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		if got := fmt.Sprint(lifecycle.Attempt(c.Status)); got != attempt {
			t.Fatalf("the session runs as attempt %s, want %s", got, attempt)
		}
	}
	run("1")
	if err := env.Client.Delete(t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	run("2")
	k.end(`{"reason":"Idle"}`)
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonIdle)
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.RestartAt = ptr.To(metav1.Now()) })
	k.releaseAttempt("2")
	run("3")
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	k.releaseAttempt("3")
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	run("4")
	k.end(`{"reason":"Completed"}`)
	c := awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	if c.Status.Attempt != 4 || c.Status.FirstAttempt != 4 || c.Status.RanAttempt != 4 || c.Status.Restarts != 0 {
		t.Errorf("recorded %+v", c.Status)
	}
	await(t, func() error { return gone(t, secretWith(ns, v1alpha1.SessionName("c"), "")) })
	made := 0
	for _, w := range testenv.Writes(t, auditDir, managerUser, ns) {
		if w.Verb == "create" && w.Object.Resource == "pods" && w.Status.Code < 300 {
			made++
		}
	}
	if made != 4 {
		t.Errorf("%d pods were created for 4 attempts", made)
	}
}
