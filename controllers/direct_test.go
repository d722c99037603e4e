package controllers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/slimcache"
)

// managerClient returns a client with the manager's role, without a cache.
func managerClient(t *testing.T) client.Client {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.CopyConfig(managerREST)
	cfg.QPS = -1
	c, err := client.New(cfg, client.Options{Scheme: scheme, FieldOwner: FieldOwner})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newProcess returns a new reconciler, as after a restart of the manager.
func newProcess(cached, live client.Client) *conversationReconciler {
	options := Options{
		Namespace: "parley-system", RuntimeImage: "example.com/parley:1",
		AgentsConfigMap: v1alpha1.AgentCatalogueName, ModelsConfigMap: v1alpha1.ModelsName,
	}
	options.SigningSecret, options.Clock = session.SigningSecret, clock.RealClock{}
	cache := asCache{cached}
	return newConversationReconciler(context.Background(), cache, live, cache, &events.FakeRecorder{}, options)
}

// asCache reads like the manager's cache: it drops the fields that the cache drops, and has the
// index of adopted pods.
type asCache struct{ client.Client }

func (c asCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	err := c.Client.Get(ctx, key, o, options...)
	if err == nil {
		_, err = slimcache.Transform(o)
	}
	return err
}

func (c asCache) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	all := &client.ListOptions{}
	all.ApplyOptions(options)
	pods, isPods := list.(*corev1.PodList)
	adopted := isPods && all.FieldSelector != nil
	if adopted {
		options = []client.ListOption{client.InNamespace(all.Namespace)}
	}
	err := c.Client.List(ctx, list, options...)
	if err == nil {
		err = meta.EachListItem(list, func(o runtime.Object) error {
			_, err := slimcache.Transform(o)
			return err
		})
	}
	if adopted {
		name, _ := all.FieldSelector.RequiresExactMatch(indexSession)
		pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
			owner := owningConversation(&pod)
			return !lifecycle.IsWarm(&pod) || owner == nil || owner.Name != name
		})
	}
	return err
}

// timedProcess is a reconciler for one namespace, with a fake clock. Tests call its Reconcile
// method.
type timedProcess struct {
	*conversationReconciler
	t         *testing.T
	namespace string
	now       *clocktesting.FakePassiveClock
}

func newTimedProcess(t *testing.T, namespace string, cached client.Client) timedProcess {
	t.Helper()
	p := timedProcess{newProcess(cached, managerClient(t)), t, namespace, clocktesting.NewFakePassiveClock(time.Now())}
	p.clock = p.now
	return p
}

func (p timedProcess) reconcile(name string) reconcile.Result {
	p.t.Helper()
	result, err := p.Reconcile(p.t.Context(), requestFor(p.namespace, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return result
}

func (p timedProcess) advance(d time.Duration) { p.now.SetTime(p.now.Now().Add(d)) }

func (p timedProcess) expect(name string, state v1alpha1.ConversationState, reason string) v1alpha1.ConversationStatus {
	p.t.Helper()
	p.reconcile(name)
	s := getConversation(p.t, p.namespace, name).Status
	if s.State != state || s.Reason != reason {
		p.t.Fatalf("%s is %s %s (%s), want %s %s", name, s.State, s.Reason, s.Message, state, reason)
	}
	return s
}

func (p timedProcess) hasSecret(name string) bool {
	p.t.Helper()
	return gone(p.t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace,
		Name: v1alpha1.SessionName(name)}}) != nil
}

// staleCache shows an old version of a Conversation, no pods, or no settings.
type staleCache struct {
	client.Client
	conversation *v1alpha1.Conversation
	stalePods    bool // Get finds no pod, and List returns oldPods
	oldPods      []corev1.Pod
	foreignPod   *corev1.Pod
	volume       *corev1.PersistentVolumeClaim
	noSettings   bool
}

func (b staleCache) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	options ...client.GetOption) error {
	switch o := object.(type) {
	case *v1alpha1.Conversation:
		if b.conversation != nil {
			b.conversation.DeepCopyInto(o)
			return nil
		}
	case *corev1.Pod:
		switch {
		case b.foreignPod != nil:
			b.foreignPod.DeepCopyInto(o)
			return nil
		case b.stalePods:
			return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
		}
	case *corev1.PersistentVolumeClaim:
		if b.volume != nil && b.volume.Name == key.Name {
			b.volume.DeepCopyInto(o)
			return nil
		}
	case *v1alpha1.UserSettings:
		if b.noSettings {
			return apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("usersettings").GroupResource(), key.Name)
		}
	}
	return b.Client.Get(ctx, key, object, options...)
}

func (b staleCache) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if pods, ok := list.(*corev1.PodList); ok && b.stalePods {
		(&corev1.PodList{Items: b.oldPods}).DeepCopyInto(pods)
		return nil
	}
	return b.Client.List(ctx, list, options...)
}

func TestASessionThatEndsDuringItsStartGetsNoPod(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager, conversation := managerClient(t), withTask(ns, "c").Obj()
	create(t, userSettings(ns, "ada"), conversation)
	end := func() {
		suspended := conversation.DeepCopy()
		suspended.Spec.Suspend = true
		if err := env.Client.Patch(t.Context(), suspended, client.MergeFrom(conversation)); err != nil {
			t.Error(err)
		}
	}
	process := newProcess(hookedCreations[*corev1.Secret]{manager, end}, manager)
	_, err := process.Reconcile(t.Context(), requestFor(ns, "c"))
	pods := &corev1.PodList{}
	if err := env.Client.List(t.Context(), pods, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, errStale) || len(pods.Items) > 0 {
		t.Errorf("the start has %d pods, and returned %v", len(pods.Items), err)
	}
}

func TestAStaleCacheNeitherRestartsNorEndsSessions(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager := managerClient(t)
	create(t, userSettings(ns, "ada"))
	class := createClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{
		Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")},
		TTL:       &metav1.Duration{Duration: time.Hour},
	}})
	begin := func(name string, change ...func(*v1alpha1.ConversationSpec)) (kubelet, *v1alpha1.Conversation, func()) {
		stop := startManager(t, ns)
		conversation := withTask(ns, name)
		for _, c := range change {
			conversation = conversation.With(c)
		}
		create(t, conversation.Obj())
		k := kubelet{t, ns, name}
		k.pod()
		early := awaitState(t, ns, name, v1alpha1.StateStarting, v1alpha1.ReasonScheduling)
		k.start()
		awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		return k, early, stop
	}
	t.Run("completed work does not start again", func(t *testing.T) {
		k, early, stop := begin("done")
		k.end(`{"reason":"Completed"}`)
		awaitState(t, ns, "done", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
		stop()
		if err := env.Client.Delete(t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		created := early.DeepCopy()
		created.Status = v1alpha1.ConversationStatus{}
		for _, known := range []*v1alpha1.Conversation{early, created} {
			process := newProcess(staleCache{Client: manager, conversation: known}, manager)
			_, err := process.Reconcile(t.Context(), requestFor(ns, "done"))
			if left := gone(t, k.object()); err == nil || left != nil {
				t.Errorf("the session started again: %v, %v", err, left)
			}
		}
	})
	t.Run("a running session is not lost", func(t *testing.T) {
		k, _, stop := begin("runs")
		stop()
		earlier := k.pod() // of a deleted Conversation with this name
		earlier.UID, earlier.OwnerReferences[0].UID = "earlier", "earlier"
		for _, cache := range []staleCache{{Client: manager, stalePods: true}, {Client: manager, foreignPod: earlier}} {
			if _, err := newProcess(cache, manager).Reconcile(t.Context(), requestFor(ns, "runs")); err != nil {
				t.Error(err)
			}
			if s := getConversation(t, ns, "runs").Status; s.State != v1alpha1.StateRunning {
				t.Errorf("the session is %s, %s", s.State, s.Reason)
			}
		}
	})
	t.Run("a session with settings does not end", func(t *testing.T) {
		k, _, stop := begin("settled")
		stop()
		if _, err := newProcess(staleCache{Client: manager, noSettings: true}, manager).Reconcile(t.Context(),
			requestFor(ns, "settled")); err != nil {
			t.Error(err)
		}
		if s := getConversation(t, ns, "settled").Status; s.State != v1alpha1.StateRunning ||
			k.pod().DeletionTimestamp != nil {
			t.Errorf("the session is %s, %s", s.State, s.Reason)
		}
	})
	t.Run("the pod of a later attempt stays", func(t *testing.T) {
		k, _, stop := begin("resumed")
		conv := getConversation(t, ns, "resumed")
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
		k.release()
		suspended := awaitState(t, ns, "resumed", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
		k.start()
		awaitState(t, ns, "resumed", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		stop()
		_, err := newProcess(staleCache{Client: manager, conversation: suspended}, manager).Reconcile(t.Context(),
			requestFor(ns, "resumed"))
		if err == nil || k.pod().DeletionTimestamp != nil {
			t.Errorf("the pod was deleted (%v)", err)
		}
	})
	t.Run("the pod and the Secret of a later attempt stay if the cache shows no pod", func(t *testing.T) {
		k, early, stop := begin("unseen")
		conv := getConversation(t, ns, "unseen")
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
		suspended := awaitState(t, ns, "unseen", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
		k.release()
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
		k.start()
		awaitState(t, ns, "unseen", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		stop()
		secret := readSecret(t, env.Client, ns, "unseen")
		withoutPod := suspended.DeepCopy()
		withoutPod.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPodReady, Reason: v1alpha1.ReasonNoPod}}
		for name, known := range map[string]*v1alpha1.Conversation{
			"started": early, "suspended": suspended, "without a pod": withoutPod,
		} {
			cache := staleCache{Client: manager, conversation: known, stalePods: true}
			_, err := newProcess(cache, manager).Reconcile(t.Context(), requestFor(ns, "unseen"))
			if err == nil || readSecret(t, env.Client, ns, "unseen").UID != secret.UID || k.pod().DeletionTimestamp != nil {
				t.Errorf("the cache shows the session as %s: the pod or the Secret was replaced (%v)", name, err)
			}
		}
	})
	t.Run("the Secret of a pod stays if the settings change", func(t *testing.T) {
		stop := startManager(t, ns)
		create(t, withTask(ns, "starts").Obj())
		k := kubelet{t, ns, "starts"}
		k.pod()
		secret := readSecret(t, env.Client, ns, "starts")
		stop()
		change(t, userSettings(ns, "ada"), func(s *v1alpha1.UserSettings) { s.Spec.MaxIterations = ptr.To[int32](7) })
		if _, err := newProcess(staleCache{Client: manager, stalePods: true}, manager).Reconcile(t.Context(),
			requestFor(ns, "starts")); err != nil {
			t.Error(err)
		}
		if readSecret(t, env.Client, ns, "starts").UID != secret.UID {
			t.Error("the Secret was replaced")
		}
	})
	t.Run("a deleted volume is created again", func(t *testing.T) {
		k, _, stop := begin("volume", ofClass(class))
		conv := getConversation(t, ns, "volume")
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
		k.release()
		awaitState(t, ns, "volume", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
		await(t, func() error { return gone(t, k.object()) })
		stop()
		volume := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "volume-workspace"}}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(volume), volume); err != nil {
			t.Fatal(err)
		}
		cache := staleCache{Client: manager, volume: volume.DeepCopy()}
		change(t, volume, func(v *corev1.PersistentVolumeClaim) { v.Finalizers = nil })
		if err := client.IgnoreNotFound(env.Client.Delete(t.Context(), volume)); err != nil {
			t.Fatal(err)
		}
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
		await(t, func() error {
			if _, err := newProcess(cache, manager).Reconcile(t.Context(), requestFor(ns, "volume")); err != nil {
				return err
			}
			return env.Client.Get(t.Context(), client.ObjectKeyFromObject(k.object()), &corev1.Pod{})
		})
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(volume), volume); err != nil {
			t.Errorf("the session has no volume: %v", err)
		}
	})
	t.Run("the files of a resumed session stay", func(t *testing.T) {
		k, _, stop := begin("files", ofClass(class))
		conv := getConversation(t, ns, "files")
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
		k.release()
		var suspended *v1alpha1.Conversation
		await(t, func() error {
			if suspended = getConversation(t, ns, "files"); !suspended.Status.ReportsNoPod() {
				return errors.New("the session has not stopped yet")
			}
			return nil
		})
		stop()
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
		late := newProcess(staleCache{Client: manager, conversation: suspended}, manager)
		late.clock = clocktesting.NewFakePassiveClock(time.Now().Add(2 * time.Hour))
		if _, err := late.Reconcile(t.Context(), requestFor(ns, "files")); err != nil {
			t.Error(err)
		}
		claim := &corev1.PersistentVolumeClaim{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "files-workspace"}, claim); err != nil ||
			claim.DeletionTimestamp != nil {
			t.Errorf("the claim was deleted (%v)", err)
		}
	})
}

type fault struct {
	// crash makes the faulty call and all later calls of the process fail. Otherwise, only the
	// faulty call fails.
	crash bool
	// applied means that the faulty call is a write that takes effect but returns an error.
	// Otherwise, the faulty call is any read or write, and it has no effect.
	applied bool
}

// faultInjector injects a fault at the nth call of a process. If applied is set, only writes count.
type faultInjector struct {
	fault

	mu    sync.Mutex
	n     int
	calls int
	wrote bool
	fired bool
}

var errInjected = errors.New("injected fault")

func (f *faultInjector) call(write bool, do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fired && f.crash {
		return errInjected
	}
	if write || !f.applied {
		f.calls++
	}
	if f.calls == f.n && !f.fired {
		f.fired = true
		if f.applied {
			f.wrote = do() == nil
		}
		return errInjected
	}
	err := do()
	f.wrote = f.wrote || write && err == nil
	return err
}

// faultyClient passes all calls through a faultInjector. It lists objects of its namespace only.
type faultyClient struct {
	client.Client
	namespace string
	injector  *faultInjector
}

func (c faultyClient) Get(ctx context.Context, key client.ObjectKey, o client.Object,
	options ...client.GetOption) error {
	return c.injector.call(false, func() error { return c.Client.Get(ctx, key, o, options...) })
}

func (c faultyClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.injector.call(false, func() error {
		return c.Client.List(ctx, list,
			append(options, client.InNamespace(c.namespace))...)
	})
}

func (c faultyClient) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return c.injector.call(true, func() error { return c.Client.Create(ctx, o, options...) })
}

func (c faultyClient) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	return c.injector.call(true, func() error { return c.Client.Update(ctx, o, options...) })
}

func (c faultyClient) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	return c.injector.call(true, func() error { return c.Client.Delete(ctx, o, options...) })
}

func (c faultyClient) Status() client.SubResourceWriter {
	return faultyStatus{c.Client.Status(), c.injector}
}

type faultyStatus struct {
	client.SubResourceWriter
	injector *faultInjector
}

func (c faultyStatus) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	return c.injector.call(true, func() error { return c.SubResourceWriter.Update(ctx, o, options...) })
}

// The test injects a fault at every call in every state of one lifecycle. The first reconcile fails
// at its first call, the second reconcile at its second call, and so on. This count begins again
// after a write, because the state is then new. It also begins again after a reconcile without a
// fault, because every call has then failed once. Every attempt must have exactly one pod.
func TestAFaultAtAnyCallDoesNotChangeTheLifecycle(t *testing.T) {
	t.Parallel()
	for name, like := range map[string]fault{
		"crash before the call": {crash: true}, "crash after the write": {crash: true, applied: true},
		"error before the call": {}, "error after the write": {applied: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := env.Namespace(t, nil)
			manager := managerClient(t)
			ctx, cancel := context.WithCancel(t.Context())
			var processes sync.WaitGroup
			faults := 0
			processes.Go(func() {
				var process *conversationReconciler
				for n := 1; ctx.Err() == nil; {
					f := &faultInjector{fault: like, n: n}
					if process == nil || like.crash {
						process = newProcess(manager, manager)
					}
					calls := faultyClient{manager, ns, f}
					cache := asCache{calls}
					process.client, process.cache, process.live, process.metadata = cache, cache, calls, cache
					process.forgetFailures() // the backoff would postpone the next fault
					_, _ = process.Reconcile(ctx, requestFor(ns, "c"))
					switch {
					case !f.fired:
						n = 1
						pause(ctx)
					case f.wrote:
						n, faults = 1, faults+1
					default:
						n, faults = n+1, faults+1
					}
				}
			})
			runLifecycle(t, ns)
			cancel()
			processes.Wait()
			t.Logf("%d faults", faults)
			// If applied is true, only writes fail, so there are fewer faults.
			if least := map[bool]int{false: 100, true: 15}[like.applied]; faults < least {
				t.Errorf("only %d faults, want %d", faults, least)
			}
		})
	}
}

func (r *conversationReconciler) forgetFailures() {
	r.memory.mu.Lock()
	defer r.memory.mu.Unlock()
	for name, entry := range r.memory.entries {
		entry.failures = 0
		r.memory.entries[name] = entry
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pollInterval):
	}
}

func TestAStartIsRequeuedEvenIfItWritesNoStatus(t *testing.T) {
	t.Parallel()
	ns, refused := env.Namespace(t, nil), env.Namespace(t, nil)
	denyPods(t, refused)
	manager := managerClient(t)
	r := newProcess(manager, manager)
	reconcileIn := func(namespace string) time.Duration {
		t.Helper()
		result, err := r.Reconcile(t.Context(), requestFor(namespace, "c"))
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	for _, namespace := range []string{ns, refused} {
		create(t, userSettings(namespace, "ada"), makeConversation(namespace, "c").Obj())
	}
	if wait := reconcileIn(ns); wait <= 0 || wait > lifecycle.StepThreshold(0) {
		t.Errorf("after creating the pod: requeued in %s", wait)
	}
	for range 3 {
		if wait := reconcileIn(refused); wait < minRetryDelay {
			t.Errorf("after a refused pod: requeued in %s", wait)
		}
	}
	// Delete the pod, and write a status that says that the session has no pod yet. The next
	// reconcile creates the pod again. The status stays the same, so the reconcile must not write it.
	if err := env.Client.Delete(t.Context(), kubelet{t, ns, "c"}.pod(), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	conversation := getConversation(t, ns, "c")
	o := lifecycle.Observation{Conversation: conversation, SettingsExist: true, Now: time.Now()}
	conversation.Status = lifecycle.NewStatus(o, lifecycle.Judge(o))
	if err := manager.Status().Update(t.Context(), conversation); err != nil {
		t.Fatal(err)
	}
	r = newProcess(manager, manager)
	if wait := reconcileIn(ns); wait <= 0 || wait > podTimeout {
		t.Errorf("after recreating the pod: requeued in %s", wait)
	}
	if after := getConversation(t, ns, "c"); after.ResourceVersion != conversation.ResourceVersion {
		t.Errorf("the status was written: %+v", after.Status)
	}
}

func TestASessionResumesWithoutWaitingForTheCache(t *testing.T) {
	t.Parallel()
	ns, manager := env.Namespace(t, nil), managerClient(t)
	suspended := func(s *v1alpha1.ConversationSpec) { s.Suspend = true }
	create(t, userSettings(ns, "ada"), withTask(ns, "c").With(suspended).Obj())
	process := newProcess(manager, manager)
	if _, err := process.Reconcile(t.Context(), requestFor(ns, "c")); err != nil {
		t.Fatal(err)
	}
	change(t, awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended),
		func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	if _, err := process.Reconcile(t.Context(), requestFor(ns, "c")); err != nil {
		t.Fatal(err)
	}
	c, pod := getConversation(t, ns, "c"), kubelet{t, ns, "c"}.pod()
	if c.Status.Attempt != 2 || lifecycle.LabelledAttempt(pod.Labels) != 2 {
		t.Errorf("the status has attempt %d, the pod has attempt %d", c.Status.Attempt, lifecycle.LabelledAttempt(pod.Labels))
	}
}
