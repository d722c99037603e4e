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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/slimcache"
	"github.com/parley-dev/parley/hack/test/status"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func describe(writes []testenv.Request) string {
	var lines []string
	for _, w := range writes {
		lines = append(lines, fmt.Sprintf("%s %s/%s %s: %d", w.Verb, w.Object.Resource, w.Object.Subresource, w.Object.Name,
			w.Status.Code))
	}
	return strings.Join(lines, "\n")
}

// managerRequests returns a line of text for each request that the manager has sent. It omits
// lists, watches and events.
func managerRequests(t *testing.T) []string {
	t.Helper()
	var lines []string
	for _, r := range testenv.Requests(t, auditDir, managerUser) {
		// Events are omitted, because the manager sends them later, at times that vary.
		if r.Verb != "list" && r.Verb != "watch" && r.Object.Resource != "events" {
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s %s %s/%s", r.Verb, r.Object.Resource, r.Object.Name,
				r.Object.Subresource), "/"))
		}
	}
	return lines
}

// This test is not parallel, because it counts all requests of the manager's user.
func TestAStartCostsOnlyTheNecessaryRequests(t *testing.T) {
	ns := env.Namespace(t, nil) // also the operator's namespace
	startManagerIn(t, ns, ns)
	run := func(c aConversation) {
		create(t, c.Obj())
		kubelet{t, ns, c.Name}.start()
		awaitState(t, ns, c.Name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
	keys := userSettings(ns, "keys")
	keys.Spec.LLMAPIKeyRef = ref("llm")
	create(t, userSettings(ns, "ada"), keys, secretWith(ns, "llm", "k"),
		catalogueWith(ns, map[string]string{session.DefaultAgent: "{protocol: acp, command: [agent]}"}),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.ModelsName}})
	awaitSettings(t, keys, v1alpha1.ReasonReady)
	run(withTask(ns, "first")) // it creates the shared objects of the namespace
	requests := func(name string, more ...string) []string {
		return append([]string{
			"get usersettings ada", "create secrets " + name + "-session", "get conversations " + name,
			"create pods " + name + "-session", "update conversations " + name + "/status",
		}, more...)
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.ConversationSpec)
		want   []string
	}{
		"scratch": {func(*v1alpha1.ConversationSpec) {}, requests("scratch")},
		"workspace": {func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "1Gi"} },
			requests("workspace", "create persistentvolumeclaims workspace-workspace")},
		"key": {func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "keys" }, append(requests("key")[1:],
			"get usersettings keys", "get secrets llm")},
		"long": {func(s *v1alpha1.ConversationSpec) {
			s.InitialUserMsg = ptr.To(strings.Repeat("x", 2*slimcache.MaxText))
		},
			requests("long", "get conversations long")},
	} {
		before, begun := len(managerRequests(t)), time.Now()
		run(withTask(ns, name).With(c.change))
		// Omit the requests for session keys. They belong to reconciles of the settings, which may
		// happen during this start.
		got := slices.DeleteFunc(managerRequests(t)[before:], func(request string) bool {
			return strings.HasSuffix(request, "-session-key")
		})
		slices.Sort(got)
		if time.Since(begun) > lifecycle.StepThreshold(0) {
			// The start was slow, so the manager may have written each step of the start to the
			// status. Count these writes as one.
			got = slices.CompactFunc(got, func(a, b string) bool { return a == b && strings.HasSuffix(a, "/status") })
		}
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

func TestANewConversationHasTheStateStarting(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	conv := makeConversation(ns, "c").Obj()
	conv.Status.State = v1alpha1.StateStopped // only the operator may set the status
	create(t, conv)
	if s := getConversation(t, ns, "c").Status; s.State != v1alpha1.StateStarting || s.ObservedGeneration != -1 ||
		kstatusOf(t, conv) != status.InProgressStatus {
		t.Errorf("%+v, %s", s, kstatusOf(t, conv))
	}
}

// heldWatch delays watch events of Conversations, from the first status write until release() is
// called.
type heldWatch struct {
	hold sync.RWMutex
	once sync.Once
}

func (l *heldWatch) watch(cfg *rest.Config) {
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

func (l *heldWatch) release() { l.hold.Unlock() }

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

// This test is not parallel, because it counts the reconciles of the whole process.
func TestAStaleCacheCausesNoConflictingStatusWrite(t *testing.T) {
	ns := env.Namespace(t, nil)
	late := &heldWatch{}
	startManager(t, ns, late.watch)
	settings := userSettings(ns, "ada")
	create(t, settings)
	awaitSettings(t, settings, v1alpha1.ReasonReady)
	create(t, makeConversation(ns, "c").Obj())
	k := kubelet{t, ns, "c"}
	k.bind()
	k.set(func(p aPod) { p.Scheduled() })
	awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonPreparingWorkspace)
	before := reconciles(t)
	k.set(func(p aPod) { p.Ready() })
	await(t, func() error {
		if reconciles(t) == before {
			return errors.New("the pod's change was not reconciled")
		}
		return nil
	})
	late.release()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	for _, w := range testenv.Writes(t, auditDir, managerUser, ns) {
		if w.Object.Resource == "conversations" && w.Status.Code == http.StatusConflict {
			t.Errorf("a status write conflicted: %s", describe([]testenv.Request{w}))
		}
	}
}

// This test is not parallel, because it counts the reconciles of the whole process.
func TestARestartedManagerWritesNothingForHealthyConversations(t *testing.T) {
	const n = 500
	ns := env.Namespace(t, nil)
	stop := startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for i := w; i < n; i += 8 {
				name := fmt.Sprintf("c-%d", i)
				if err := env.Client.Create(t.Context(), makeConversation(ns, name).Obj()); err != nil {
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
	// The metrics keep the cache of the newest manager in memory. Start and stop a manager with an
	// empty cache, so that the memory of the earlier caches can be freed.
	startManager(t, env.Namespace(t, nil))()

	before, reconciled, heap := len(testenv.Writes(t, auditDir, managerUser, ns)), reconciles(t), heapInUse()
	startManager(t, ns)
	await(t, func() error {
		if done := reconciles(t) - reconciled; done < n {
			return fmt.Errorf("%v reconciles", done)
		}
		return nil
	})
	t.Logf("the cache takes %.1f KiB per Conversation", float64(heapInUse()-heap)/n/1024)
	if writes := testenv.Writes(t, auditDir, managerUser, ns)[before:]; len(writes) > 0 {
		t.Errorf("%d writes:\n%s", len(writes), describe(writes))
	}
}

// makeReady waits for a pod and makes it ready. It may run on any goroutine, so it returns errors.
func makeReady(t *testing.T, namespace, name string) error {
	pod := &corev1.Pod{}
	key := client.ObjectKey{Namespace: namespace, Name: v1alpha1.SessionName(name)}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := env.Client.Get(t.Context(), key, pod)
		if err == nil {
			aPod{Pod: pod}.Ready()
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

func TestTwoManagersCreateOnePodPerConversation(t *testing.T) {
	t.Parallel()
	const n = 20
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	for i := range n {
		create(t, makeConversation(ns, fmt.Sprintf("c-%d", i)).Obj())
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

// crashAfter lets a client write n times. All later writes fail, as if the process had crashed.
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

func TestASessionStartsAfterACrashBetweenAnyTwoWrites(t *testing.T) {
	t.Parallel()
	// A start causes these writes, in any order: the Service, the NetworkPolicy, the settings'
	// Secret and status, and the session's PersistentVolumeClaim, Secret, pod and status.
	for n := range int32(9) {
		t.Run(fmt.Sprintf("after %d writes", n), func(t *testing.T) {
			t.Parallel()
			ns := env.Namespace(t, nil)
			stop := startManager(t, ns, crashAfter(n))
			create(t, userSettings(ns, "ada"), makeConversation(ns, "c").With(func(s *v1alpha1.ConversationSpec) {
				s.Workspace = &v1alpha1.Workspace{Size: "1Gi"}
			}).Obj())
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
				t.Errorf("created %v", made)
			}
		})
	}
}

// This test is not parallel, because it measures the memory of the whole process.
func TestLongTextsAreNotCached(t *testing.T) {
	const n = 40
	ns := env.Namespace(t, nil)
	create(t, userSettings(ns, "ada"))
	long := strings.Repeat("x", 120<<10)
	for i := range n {
		create(t, makeConversation(ns, fmt.Sprintf("c-%d", i)).With(func(s *v1alpha1.ConversationSpec) {
			s.InitialUserMsg, s.ConversationInstructions = &long, &long
			s.ImageURLs = slices.Repeat([]string{"data:image/png;base64," + strings.Repeat("A", 16000)}, 16)
		}).Obj())
	}
	// The metrics keep the cache of the newest manager in memory. Start and stop a manager with an
	// empty cache, so that the memory of the earlier caches can be freed.
	startManager(t, env.Namespace(t, nil))()
	heap := heapInUse()
	startManager(t, ns)
	for i := range n {
		if err := makeReady(t, ns, fmt.Sprintf("c-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() error { return allRunning(t, ns, n) })
	// Measure repeatedly, because reconciles in flight hold texts for a moment longer.
	await(t, func() error {
		if each := (float64(heapInUse()) - float64(heap)) / n; each > float64(len(long)) {
			return fmt.Errorf("a conversation with %d KiB of texts takes %.1f KiB of the manager's memory",
				(2*len(long)+16*16000)>>10, each/1024)
		}
		return nil
	})
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName("c-0")},
		secret); err != nil {
		t.Fatal(err)
	}
	var doc session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil || doc.FirstMessage != long ||
		doc.Instructions != long || len(doc.Images) != 16 {
		t.Errorf("the session gets %d and %d bytes and %d images (%v)", len(doc.FirstMessage), len(doc.Instructions),
			len(doc.Images), err)
	}
}
