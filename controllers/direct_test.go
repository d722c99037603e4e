package controllers

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
)

// managerClient is a client with the manager's role, and without a cache.
func managerClient(t *testing.T) client.Client {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.CopyConfig(asUser)
	cfg.QPS = -1
	c, err := client.New(cfg, client.Options{Scheme: scheme, FieldOwner: FieldOwner})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newProcess is a reconciler that was just started. What it knows is what the two clients show it.
func newProcess(cached, live client.Client) *conversationReconciler {
	options := Options{
		Namespace: "parley-system", RuntimeImage: "example.com/parley:1",
		AgentsConfigMap: v1alpha1.AgentCatalogueName, ModelsConfigMap: v1alpha1.ModelsName,
	}
	options.SigningSecret, options.Clock = session.SigningSecret, clock.RealClock{}
	return newConversationReconciler(cached, live, cached, &events.FakeRecorder{}, options)
}

// timedProcess is a process in one namespace, whose looks and whose time are a test's.
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

func (p timedProcess) look(name string) reconcile.Result {
	p.t.Helper()
	result, err := p.Reconcile(p.t.Context(), requestFor(p.namespace, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return result
}

// waits lets time pass.
func (p timedProcess) waits(d time.Duration) { p.now.SetTime(p.now.Now().Add(d)) }

// finds looks at a Conversation, and where it stands then.
func (p timedProcess) finds(name string, state v1alpha1.ConversationState, reason string) v1alpha1.ConversationStatus {
	p.t.Helper()
	p.look(name)
	s := theConversation(p.t, p.namespace, name).Status
	if s.State != state || s.Reason != reason {
		p.t.Fatalf("%s is %s %s (%s), want %s %s", name, s.State, s.Reason, s.Message, state, reason)
	}
	return s
}

// hasSecret says whether anything was made for the start of a session.
func (p timedProcess) hasSecret(name string) bool {
	p.t.Helper()
	return gone(p.t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace,
		Name: v1alpha1.SessionName(name)}}) != nil
}

// behind shows a Conversation as it was once, or no pods.
type behind struct {
	client.Client
	conversation *v1alpha1.Conversation
	noPods       bool
}

func (b behind) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	options ...client.GetOption) error {
	switch o := object.(type) {
	case *v1alpha1.Conversation:
		if b.conversation != nil {
			b.conversation.DeepCopyInto(o)
			return nil
		}
	case *corev1.Pod:
		if b.noPods {
			return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
		}
	}
	return b.Client.Get(ctx, key, object, options...)
}

func TestACacheThatIsBehind(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	manager := managerClient(t)
	create(t, userSettings(ns, "ada"))
	class := aClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{
		Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")},
		TTL:       &metav1.Duration{Duration: time.Hour},
	}})
	begin := func(name string, change ...func(*v1alpha1.ConversationSpec)) (kubelet, *v1alpha1.Conversation, func()) {
		stop := startManager(t, ns)
		conversation := working(ns, name)
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
	t.Run("begins no work that is done", func(t *testing.T) {
		k, early, stop := begin("done")
		k.end(`{"reason":"Completed"}`)
		awaitState(t, ns, "done", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
		stop()
		if err := env.Client.Delete(t.Context(), k.pod(), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		_, err := newProcess(behind{Client: manager, conversation: early}, manager).Reconcile(t.Context(),
			requestFor(ns, "done"))
		if left := gone(t, k.object()); err == nil || left != nil {
			t.Errorf("it is begun again: %v, %v", err, left)
		}
	})
	t.Run("loses no session that runs", func(t *testing.T) {
		_, _, stop := begin("runs")
		stop()
		if _, err := newProcess(behind{Client: manager, noPods: true}, manager).Reconcile(t.Context(),
			requestFor(ns, "runs")); err != nil {
			t.Error(err)
		}
		awaitState(t, ns, "runs", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	})
	t.Run("removes no pod of a later attempt", func(t *testing.T) {
		k, _, stop := begin("resumed")
		conv := theConversation(t, ns, "resumed")
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
		k.letGo()
		suspended := awaitState(t, ns, "resumed", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
		k.start()
		awaitState(t, ns, "resumed", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
		stop()
		_, err := newProcess(behind{Client: manager, conversation: suspended}, manager).Reconcile(t.Context(),
			requestFor(ns, "resumed"))
		if err == nil || k.pod().DeletionTimestamp != nil {
			t.Errorf("the pod is deleted (%v)", err)
		}
	})
	t.Run("removes no files of a session that is resumed", func(t *testing.T) {
		k, _, stop := begin("files", ofClass(class))
		conv := theConversation(t, ns, "files")
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
		k.letGo()
		var suspended *v1alpha1.Conversation
		await(t, func() error {
			if suspended = theConversation(t, ns, "files"); !lifecycle.ReportsNoPod(suspended.Status) {
				return errors.New("it is not stopped yet")
			}
			return nil
		})
		stop()
		change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
		late := newProcess(behind{Client: manager, conversation: suspended}, manager)
		late.clock = clocktesting.NewFakePassiveClock(time.Now().Add(2 * time.Hour))
		if _, err := late.Reconcile(t.Context(), requestFor(ns, "files")); err != nil {
			t.Error(err)
		}
		claim := &corev1.PersistentVolumeClaim{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "files-workspace"}, claim); err != nil ||
			claim.DeletionTimestamp != nil {
			t.Errorf("the claim is deleted (%v)", err)
		}
	})
}

// fault is what happens at a call of a process.
type fault struct {
	// dies: nothing that the process does after that call happens. Else the call fails, and the
	// process goes on.
	dies bool
	// unheard: the call is a write that is done, and nobody hears of it. Else it is any call, and
	// it is not done.
	unheard bool
}

// fate is a fault at the nth call of a process to which it may happen.
type fate struct {
	fault

	mu    sync.Mutex
	n     int
	calls int
	wrote bool
	met   bool
}

var errFate = errors.New("the connection is gone")

func (f *fate) call(write bool, do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.met && f.dies {
		return errFate
	}
	if write || !f.unheard {
		f.calls++
	}
	if f.calls == f.n && !f.met {
		f.met = true
		if f.unheard {
			f.wrote = do() == nil
		}
		return errFate
	}
	err := do()
	f.wrote = f.wrote || write && err == nil
	return err
}

// fated is a client all of whose calls are subject to a fate. It lists what is in its namespace.
type fated struct {
	client.Client
	namespace string
	fate      *fate
}

func (c fated) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return c.fate.call(false, func() error { return c.Client.Get(ctx, key, o, options...) })
}

func (c fated) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.fate.call(false, func() error {
		return c.Client.List(ctx, list,
			append(options, client.InNamespace(c.namespace))...)
	})
}

func (c fated) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return c.fate.call(true, func() error { return c.Client.Create(ctx, o, options...) })
}

func (c fated) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	return c.fate.call(true, func() error { return c.Client.Update(ctx, o, options...) })
}

func (c fated) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	return c.fate.call(true, func() error { return c.Client.Delete(ctx, o, options...) })
}

func (c fated) Status() client.SubResourceWriter { return fatedStatus{c.Client.Status(), c.fate} }

type fatedStatus struct {
	client.SubResourceWriter
	fate *fate
}

func (c fatedStatus) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	return c.fate.call(true, func() error { return c.SubResourceWriter.Update(ctx, o, options...) })
}

// One life, and at every call from every state that the life goes through the process dies or the
// call fails: the first at its first call, the next at its second, and so on. Once one has written
// something the next meets another state, and the count begins anew; so it does when one got
// through. The life is as if nothing had happened, and each attempt has one pod.
func TestAFaultAtAnyCallChangesNothingInALife(t *testing.T) {
	t.Parallel()
	for name, like := range map[string]fault{
		"dies before the call": {dies: true}, "dies after it": {dies: true, unheard: true},
		"fails before the call": {}, "fails after it": {unheard: true},
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
					f := &fate{fault: like, n: n}
					if process == nil || like.dies {
						process = newProcess(manager, manager)
					}
					calls := fated{manager, ns, f}
					process.client, process.cache, process.live, process.metadata = calls, calls, calls, calls
					_, _ = process.Reconcile(ctx, requestFor(ns, "c"))
					switch {
					case !f.met:
						n = 1
						tick(ctx)
					case f.wrote:
						n, faults = 1, faults+1
					default:
						n, faults = n+1, faults+1
					}
				}
			})
			live(t, ns)
			cancel()
			processes.Wait()
			t.Logf("%d faults", faults)
			// Each write is one, and as many reads as lead to it.
			if least := map[bool]int{false: 100, true: 15}[like.unheard]; faults < least {
				t.Errorf("only %d faults, want %d", faults, least)
			}
		})
	}
}

// tick lets others go on, where there is nothing to do.
func tick(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(glance):
	}
}

func TestAStartIsRequeuedThoughNothingIsWritten(t *testing.T) {
	t.Parallel()
	ns, refused := env.Namespace(t, nil), env.Namespace(t, nil)
	noPods(t, refused)
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
		t.Errorf("its pod is created: requeued in %s", wait)
	}
	for range 3 {
		if wait := reconcileIn(refused); wait < retrySoonest {
			t.Errorf("its pod is refused: requeued in %s", wait)
		}
	}
	// The status of a start without a pod is recorded, so that a pod that takes the place of another
	// changes nothing in it.
	if err := env.Client.Delete(t.Context(), kubelet{t, ns, "c"}.pod(), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	conversation := theConversation(t, ns, "c")
	o := lifecycle.Observation{Conversation: conversation, SettingsExist: true, Now: time.Now()}
	conversation.Status = lifecycle.NewStatus(o, lifecycle.Judge(o))
	if err := env.Client.Status().Update(t.Context(), conversation); err != nil {
		t.Fatal(err)
	}
	r = newProcess(manager, manager)
	if wait := reconcileIn(ns); wait <= 0 || wait > podTimeout {
		t.Errorf("its pod is created again: requeued in %s", wait)
	}
	if after := theConversation(t, ns, "c"); after.ResourceVersion != conversation.ResourceVersion {
		t.Errorf("the status was written: %+v", after.Status)
	}
}
