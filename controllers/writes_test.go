package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/testenv"
)

func describe(writes []testenv.Request) string {
	var lines []string
	for _, w := range writes {
		lines = append(lines, fmt.Sprintf("%s %s/%s %s: %d", w.Verb, w.Object.Resource, w.Object.Subresource, w.Object.Name, w.Status.Code))
	}
	return strings.Join(lines, "\n")
}

func TestFromCreationToRunningTheManagerWritesFourTimes(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	run := func(c aConversation) {
		create(t, c.obj())
		kubelet{t, ns, c.Name}.start()
		awaitState(t, ns, c.Name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
	create(t, userSettings(ns, "ada"))
	run(makeConversation(ns, "first")) // it makes what the namespace's sessions share
	for name, want := range map[string]int{"scratch": 4, "workspace": 5} {
		before := len(testenv.Writes(t, auditDir, managerUser, ns))
		run(makeConversation(ns, name).with(func(s *v1alpha1.ConversationSpec) {
			if name == "workspace" {
				s.Workspace = &v1alpha1.Workspace{Size: "1Gi"}
			}
		}))
		if writes := testenv.Writes(t, auditDir, managerUser, ns)[before:]; len(writes) > want {
			t.Errorf("%s: %d writes, want at most %d:\n%s", name, len(writes), want, describe(writes))
		}
	}
}

// lateConversations holds back what a watch tells of Conversations, from the first status that is written until it is let go.
type lateConversations struct {
	hold sync.RWMutex
	once sync.Once
}

func (l *lateConversations) watch(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/conversations/") {
				l.once.Do(l.hold.Lock)
			}
			response, err := next.RoundTrip(r)
			if err == nil && r.URL.Query().Get("watch") != "" && strings.HasSuffix(r.URL.Path, "/conversations") {
				response.Body = heldBody{response.Body, &l.hold}
			}
			return response, err
		})
	})
}

func (l *lateConversations) letGo() { l.hold.Unlock() }

type heldBody struct {
	io.ReadCloser
	hold *sync.RWMutex
}

func (b heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.hold.RLock()
	defer b.hold.RUnlock()
	return n, err
}

// Not parallel: it counts the reconciles of the whole process.
func TestAStatusIsNotWrittenOverOneThatTheCacheHasNotSeen(t *testing.T) {
	ns := env.Namespace(t, nil)
	late := &lateConversations{}
	startManager(t, ns, late.watch)
	settings := userSettings(ns, "ada")
	create(t, settings)
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	create(t, makeConversation(ns, "c").obj())
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonScheduling)
	before := reconciles(t)
	kubelet{t, ns, "c"}.start()
	await(t, func() error {
		if reconciles(t) == before {
			return errors.New("the pod's change was not looked at")
		}
		return nil
	})
	late.letGo()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	for _, w := range testenv.Writes(t, auditDir, managerUser, ns) {
		if w.Object.Resource == "conversations" && w.Status.Code == http.StatusConflict {
			t.Errorf("a status met a newer one: %s", describe([]testenv.Request{w}))
		}
	}
}

// Not parallel: it counts the reconciles of the whole process.
func TestARestartWithHealthyConversationsWritesNothing(t *testing.T) {
	const n = 500
	ns := env.Namespace(t, nil)
	stop := startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := w; i < n; i += 8 {
				name := fmt.Sprintf("c-%d", i)
				if err := env.Client.Create(t.Context(), makeConversation(ns, name).obj()); err != nil {
					t.Error(err)
					return
				}
				if err := makeReady(t, ns, name); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	await(t, func() error { return allRunning(t, ns, n) })
	stop()
	startManager(t, env.Namespace(t, nil))() // the metrics hold on to the newest manager's cache

	before, reconciled, heap := len(testenv.Writes(t, auditDir, managerUser, ns)), reconciles(t), heapInUse()
	startManager(t, ns)
	await(t, func() error {
		if done := reconciles(t) - reconciled; done < n {
			return fmt.Errorf("%v reconciles", done)
		}
		return nil
	})
	t.Logf("the cache takes %.1f KiB a conversation", float64(heapInUse()-heap)/n/1024)
	if writes := testenv.Writes(t, auditDir, managerUser, ns)[before:]; len(writes) > 0 {
		t.Errorf("%d writes:\n%s", len(writes), describe(writes))
	}
}

// makeReady waits for a pod and makes it ready, without failing the test: it runs on goroutines of its own.
func makeReady(t *testing.T, namespace, name string) error {
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: namespace, Name: v1alpha1.SessionName(name)}
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		err := env.Client.Get(t.Context(), key, pod)
		if err == nil {
			aPod{pod}.ready()
			err = env.Client.Status().Update(t.Context(), pod)
			if err == nil {
				return nil
			}
		}
		select {
		case <-t.Context().Done():
			return err
		case <-tick.C:
		}
	}
}

func allRunning(t *testing.T, namespace string, n int) error {
	list := &v1alpha1.ConversationList{}
	if err := env.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
		return err
	}
	running := 0
	for _, c := range list.Items {
		if c.Status.State == v1alpha1.StateRunning {
			running++
		}
	}
	if running != n {
		return fmt.Errorf("%d of %d are running", running, n)
	}
	return nil
}

func reconciles(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, f := range families {
		if f.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "controller" && l.GetValue() == "conversation" {
					total += m.GetCounter().GetValue()
				}
			}
		}
	}
	return total
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestTwoManagersAtOnceMakeOnePodForEachConversation(t *testing.T) {
	t.Parallel()
	const n = 20
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	for i := range n {
		create(t, makeConversation(ns, fmt.Sprintf("c-%d", i)).obj())
	}
	for i := range n {
		kubelet{t, ns, fmt.Sprintf("c-%d", i)}.start()
	}
	await(t, func() error { return allRunning(t, ns, n) })
	made := map[string]int{}
	for _, w := range testenv.Writes(t, auditDir, managerUser, ns) {
		if w.Object.Resource == "pods" && w.Status.Code < 300 {
			made[w.Verb]++
		}
	}
	if made["create"] != n || made["delete"] != 0 {
		t.Errorf("pods: %v, want %d created and none deleted", made, n)
	}
}

// crashAfter lets a client write n times; then, as far as the API server sees, its process is gone.
func crashAfter(n int32) func(*rest.Config) {
	var writes atomic.Int32
	return func(cfg *rest.Config) {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Method != http.MethodGet && writes.Add(1) > n {
					return nil, errors.New("crashed")
				}
				return next.RoundTrip(r)
			})
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestACrashBetweenAnyTwoWritesLeavesNothingTwiceAndNothingUndone(t *testing.T) {
	t.Parallel()
	// Service, NetworkPolicy, Secret of the settings, their status, claim, Secret, pod, status: in any order.
	for n := range int32(9) {
		t.Run(fmt.Sprintf("after %d writes", n), func(t *testing.T) {
			t.Parallel()
			ns := env.Namespace(t, nil)
			stop := startManager(t, ns, crashAfter(n))
			create(t, userSettings(ns, "ada"), makeConversation(ns, "c").with(func(s *v1alpha1.ConversationSpec) {
				s.Workspace = &v1alpha1.Workspace{Size: "1Gi"}
			}).obj())
			await(t, func() error {
				if done := len(testenv.Writes(t, auditDir, managerUser, ns)); done < min(int(n), 8) {
					return fmt.Errorf("%d writes", done)
				}
				return nil
			})
			stop()
			startManager(t, ns)
			kubelet{t, ns, "c"}.start()
			awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
			made := map[string]int{}
			for _, w := range testenv.Writes(t, auditDir, managerUser, ns) {
				if w.Verb == "create" && w.Status.Code < 300 {
					made[w.Object.Resource]++
				}
			}
			if made["pods"] != 1 || made["secrets"] != 2 || made["persistentvolumeclaims"] != 1 {
				t.Errorf("made %v", made)
			}
		})
	}
}

// Not parallel: it measures the memory of the whole process.
func TestLongTextsAreReadAtAStartAndNotKept(t *testing.T) {
	const n = 40
	ns := env.Namespace(t, nil)
	create(t, userSettings(ns, "ada"))
	long := strings.Repeat("x", 120<<10)
	for i := range n {
		create(t, makeConversation(ns, fmt.Sprintf("c-%d", i)).with(func(s *v1alpha1.ConversationSpec) {
			s.InitialUserMsg, s.ConversationInstructions = &long, &long
			s.ImageURLs = slices.Repeat([]string{"data:image/png;base64," + strings.Repeat("A", 16000)}, 16)
		}).obj())
	}
	startManager(t, env.Namespace(t, nil))() // the metrics hold on to the newest manager's cache
	heap := heapInUse()
	startManager(t, ns)
	for i := range n {
		if err := makeReady(t, ns, fmt.Sprintf("c-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() error { return allRunning(t, ns, n) })
	each := (float64(heapInUse()) - float64(heap)) / n
	t.Logf("a conversation with %d KiB of texts takes %.1f KiB", (2*len(long)+16*16000)>>10, each/1024)
	if each > float64(len(long)) {
		t.Errorf("a conversation takes %.0f bytes of the manager's memory", each)
	}
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName("c-0")}, secret); err != nil {
		t.Fatal(err)
	}
	var doc session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil || doc.FirstMessage != long || doc.Instructions != long || len(doc.Images) != 16 {
		t.Errorf("the session is told %d and %d bytes and %d images (%v)", len(doc.FirstMessage), len(doc.Instructions), len(doc.Images), err)
	}
}
