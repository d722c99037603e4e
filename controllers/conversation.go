package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/calls"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/queue"
	"github.com/parley-dev/parley/controllers/slimcache"
)

// +kubebuilder:rbac:groups=parley.dev,resources=conversations,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=parley.dev,resources=conversations/status,verbs=update
// +kubebuilder:rbac:groups=parley.dev,resources=conversations/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods;persistentvolumeclaims,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch
// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=parley.dev,resources=sessionclasses,verbs=list;watch

// specChanged ignores updates that only change metadata or the status.
var specChanged = builder.WithPredicates(predicate.GenerationChangedPredicate{})

// conversationReconciler runs at most one pod for each Conversation, and reports the Conversation's
// state.
type conversationReconciler struct {
	gatherer
	client     client.Client
	clock      clock.PassiveClock
	recorder   events.EventRecorder
	namespaces *namespaceObjects
	memory     memory

	queue  *queue.Queue
	leaver *leaver
	// starts limits the sessions of a user that this process starts at the same time: see maxStarts. A
	// session is in this queue while it waits, and while Reconcile prepares and creates its objects.
	starts *queue.Queue
	// admissions receives a request when a waiting session gets a slot in r.queue or r.starts.
	admissions <-chan event.GenericEvent
	fillMu     sync.Mutex
	filled     bool

	// backlog returns the number of Conversations that wait to be reconciled.
	backlog func() int

	warm      *warmSet
	warmPause warmPause
	// calls is the pool that sends requests to sessions. lifetime is a context that ends when the
	// manager stops.
	calls    *calls.Pool
	lifetime context.Context
}

func newConversationReconciler(lifetime context.Context, c client.Client, live, metadata client.Reader,
	recorder events.EventRecorder, options Options) *conversationReconciler {
	admissions, admitted := newAdmissions()
	r := &conversationReconciler{
		gatherer: gatherer{cache: c, metadata: metadata, live: live, options: options, binds: newBinds()}, client: c,
		clock: options.Clock, recorder: recorder, namespaces: &namespaceObjects{client: c, live: live, options: options},
		queue: queue.New(admitted), starts: queue.New(admitted), admissions: admissions, backlog: func() int { return 0 },
		warm: newWarmSet(), calls: calls.New(maxCalls), lifetime: lifetime,
	}
	r.warm.removed, r.warmPause.changed = r.binds.settle, func(string) {}
	r.leaver = newLeaver(r.queue, &r.gatherer)
	r.turns = newTurnPoller(options.ArchiveURL, c, r.turnToken, r.dialArchive)
	return r
}

func (r *conversationReconciler) setup(mgr ctrl.Manager) error {
	if err := registerStateMetric(mgr.GetCache(), mgr.Elected()); err != nil {
		return err
	}
	for _, runnable := range []manager.Runnable{r.turns, r.leaver} {
		if err := mgr.Add(runnable); err != nil {
			return err
		}
	}
	if err := r.warm.follow(r.lifetime, mgr.GetCache()); err != nil {
		return err
	}
	ofSettings := withPriority(sharedPriority, func(ctx context.Context, o client.Object) []reconcile.Request {
		return requestsFor(ctx, r.client, &v1alpha1.ConversationList{}, o.GetNamespace(), v1alpha1.IndexUserSettingsName,
			o.GetName())
	})
	waitingForSettings := withPriority(sharedPriority, func(ctx context.Context, o client.Object) []reconcile.Request {
		return conversationsOfSettings(ctx, r.client, client.ObjectKeyFromObject(o), readsSettings)
	})
	classOwnerOrExistence := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.UserSettings), e.ObjectNew.(*v1alpha1.UserSettings)
		return !ptr.Equal(before.Spec.SessionClassName, after.Spec.SessionClassName) || before.UID != after.UID ||
			before.OwnerName() != after.OwnerName() || after.DeletionTimestamp != nil
	}}
	// Do not use Owns(), because it would query the RESTMapper for each event.
	ofOwner := withPriority(podPriority, func(_ context.Context, o client.Object) []reconcile.Request {
		return requestsForOwner(o)
	})
	ofClass := withPriority(sharedPriority, func(ctx context.Context, _ client.Object) []reconcile.Request {
		return r.notStarted(ctx)
	})
	countBacklog := func(_ context.Context, queue workQueue) error {
		r.backlog = queue.Len
		return nil
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("conversation").
		For(&v1alpha1.Conversation{}).
		Watches(&corev1.Pod{}, ofOwner).
		Watches(&corev1.PersistentVolumeClaim{}, ofOwner).
		Watches(&v1alpha1.SessionClass{}, ofClass, specChanged).
		Watches(&v1alpha1.UserSettings{}, ofSettings, builder.WithPredicates(classOwnerOrExistence)).
		Watches(&v1alpha1.UserSettings{}, waitingForSettings, specChanged).
		WatchesRawSource(source.Func(countBacklog)).
		WatchesRawSource(source.Channel(r.admissions, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(r.turns.changes, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(r.calls.Done(), withPriority(podPriority,
			func(_ context.Context, o client.Object) []reconcile.Request {
				return []reconcile.Request{requestFor(o.GetNamespace(), o.GetName())}
			}))).
		WatchesRawSource(source.Channel(r.leaver.pool.Done(), &handler.EnqueueRequestForObject{})).
		WatchesMetadata(&corev1.Secret{}, withPriority(sharedPriority, r.conversationsOfSecret)).
		WatchesMetadata(&corev1.ConfigMap{}, withPriority(sharedPriority, r.conversationsOfConfigMap)).
		Complete(r)
}

// notStarted returns requests for the Conversations that mayStart selects, in all namespaces. Each
// of them may wait for an object that all namespaces share, such as a class or the agent catalogue.
func (r *conversationReconciler) notStarted(ctx context.Context) []reconcile.Request {
	var list v1alpha1.ConversationList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if c := &list.Items[i]; mayStart(c) {
			requests = append(requests, requestFor(c.Namespace, c.Name))
		}
	}
	return requests
}

// mayStart reports whether a Conversation is new or starting, or waits for its settings.
func mayStart(o client.Object) bool {
	s := o.(*v1alpha1.Conversation).Status
	return s.State == v1alpha1.StateStarting || s.State == "" || s.Reason == v1alpha1.ReasonSettingsMissing
}

// mayLackInputs reports whether a Conversation may wait for a missing Secret or ConfigMap. A queued
// session does not wait for them yet: the manager reads them only when the session gets a slot.
func mayLackInputs(o client.Object) bool {
	return mayStart(o) && o.(*v1alpha1.Conversation).Status.Reason != v1alpha1.ReasonQueued
}

// readsSettings reports whether the status of a Conversation depends on the values in its settings.
func readsSettings(o client.Object) bool {
	return mayLackInputs(o) || lifecycle.FailedWithoutModel(o.(*v1alpha1.Conversation).Status)
}

// conversationsOfSecret returns requests for the Conversation that owns a Secret, and for all
// Conversations that may wait for the Secret. A Conversation may wait for a Secret if the
// Conversation itself, its settings or its inherited settings refer to the Secret.
func (r *conversationReconciler) conversationsOfSecret(ctx context.Context, secret client.Object) []reconcile.Request {
	if client.ObjectKeyFromObject(secret) == r.options.signingKey() {
		return r.notStarted(ctx)
	}
	requests := requestsForSecret(ctx, r.client, &v1alpha1.ConversationList{}, secret, mayLackInputs)
	for _, settings := range requestsForSecret(ctx, r.client, &v1alpha1.UserSettingsList{}, secret) {
		requests = append(requests, conversationsOfSettings(ctx, r.client, settings.NamespacedName, mayLackInputs)...)
	}
	return append(requests, requestsForOwner(secret)...)
}

func (r *conversationReconciler) conversationsOfConfigMap(ctx context.Context, o client.Object) []reconcile.Request {
	namespace, name := o.GetNamespace(), o.GetName()
	if namespace == r.options.Namespace && (name == r.options.AgentsConfigMap || name == r.options.ModelsConfigMap) {
		return r.notStarted(ctx)
	}
	return requestsFor(ctx, r.client, &v1alpha1.ConversationList{}, namespace, indexConfigMapName, name, mayLackInputs)
}

// Reconcile brings one Conversation to its requested state.
func (r *conversationReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := r.fillQueue(ctx); err != nil {
		return reconcile.Result{}, err
	}
	conversation := &v1alpha1.Conversation{}
	err := r.client.Get(ctx, req.NamespacedName, conversation)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.forget(ctx, req.NamespacedName)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read Conversation: %w", err)
	}
	stale := r.memory.get(conversation).staleVersions
	if slices.Contains(stale, conversation.ResourceVersion) {
		return reconcile.Result{}, nil // the event of our own write requeues the Conversation
	}
	if len(stale) > 0 {
		r.memory.update(conversation, func(m *memoryEntry) { m.staleVersions = nil })
	}
	waits := false
	defer func() {
		if !waits { // r.starts requeues a session that waits
			r.starts.Leave(req.NamespacedName)
		}
	}()
	p, err := r.plan(ctx, conversation)
	if err == nil && p.mustBeRecorded() {
		p, err = r.record(ctx, p)
	}
	switch {
	case p == nil || err != nil:
		return reconcile.Result{}, err
	case p.start.isPostponed():
		waits = p.start.waits
		return reconcile.Result{RequeueAfter: p.start.retryIn}, nil
	}
	return r.perform(ctx, p)
}

// plan is the verdict about a Conversation, and the observation that it follows from. start is nil
// if the session needs no start, or if it waits for a slot in r.queue.
type plan struct {
	gathered
	verdict lifecycle.Verdict
	start   *prepared
}

func (p *plan) mustBeRecorded() bool { return !p.start.isPostponed() && p.mustRecord(p.verdict) }

// plan gathers the objects of a Conversation and judges them. If a start is needed, it assigns a
// slot and prepares the start. It changes no objects, but it changes the manager's memory, and it
// may ask idle sessions to end.
func (r *conversationReconciler) plan(ctx context.Context, conversation *v1alpha1.Conversation) (*plan, error) {
	o, err := r.gather(ctx, conversation, r.memory.get(conversation), r.clock.Now())
	if err != nil {
		return nil, err
	}
	r.notePods(o)
	p := &plan{gathered: o, verdict: lifecycle.Judge(o.Observation)}
	if !p.verdict.NeedsStart(o.Observation) {
		return p, nil
	}
	if p.start, err = r.admit(ctx, &p.gathered); err != nil {
		return nil, err
	}
	if !p.start.isPostponed() {
		p.verdict = lifecycle.Judge(p.Observation)
	}
	return p, nil
}

// record writes the status for a verdict that must be recorded before the manager acts, and returns
// the plan that follows from the new status. The manager then acts on this plan, and does not wait
// until the cache shows the new status. To save time, the manager plans while it writes. record
// returns nil if the Conversation has changed, or if the new verdict must be recorded too. A watch
// event then requeues the Conversation.
func (r *conversationReconciler) record(ctx context.Context, p *plan) (*plan, error) {
	expected := p.Conversation.DeepCopy()
	expected.Status = lifecycle.NewStatus(p.Observation, p.verdict)
	name := client.ObjectKeyFromObject(expected)
	hadSlot := r.queue.Has(name)
	var recorded *v1alpha1.Conversation
	var writing errgroup.Group
	defer func() { _ = writing.Wait() }() // if the plan panics, the write still ends within this reconcile
	writing.Go(func() (err error) {
		recorded, err = r.updateStatus(ctx, p.Conversation, expected.Status)
		return err
	})
	next, planErr := r.plan(ctx, expected)
	writeErr := writing.Wait()
	if recorded == nil {
		if !hadSlot {
			r.queue.Leave(name)
		}
		return nil, writeErr
	}
	r.reportWrite(p.gathered, p.verdict, recorded)
	if _, err := slimcache.Transform(recorded); planErr != nil || err != nil { // as in the cache
		return nil, cmp.Or(planErr, err)
	}
	if next.Conversation = recorded; next.mustBeRecorded() {
		_, err := r.writeStatus(ctx, next.gathered, next.verdict)
		return nil, err
	}
	return next, nil
}

// perform acts, writes the status, deletes expired objects and requeues.
func (r *conversationReconciler) perform(ctx context.Context, p *plan) (reconcile.Result, error) {
	o, start, verdict := p.gathered, p.start, p.verdict
	blocker, err := r.act(ctx, o, start, verdict)
	if err != nil {
		return reconcile.Result{}, err // the status reports only completed actions
	}
	if keeps, err := r.keepsSlot(ctx, o, start, verdict, blocker); err != nil {
		return reconcile.Result{}, err
	} else if !keeps {
		r.queue.Leave(client.ObjectKeyFromObject(o.Conversation))
	}
	verdict.NoPod = o.Pod == nil && o.OldPod == nil && verdict.Pod != lifecycle.NeedPod && blocker == nil
	if blocker != nil && verdict.Pod == lifecycle.NeedPod {
		verdict = verdict.BlockedBy(o.Observation, blocker)
	}
	writeIn, err := r.writeStatus(ctx, o, verdict)
	if err != nil {
		return reconcile.Result{}, err
	}
	expireIn, err := r.expire(ctx, o, verdict)
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.requeue(o, start, verdict, blocker, append(expireIn, writeIn)...), nil
}

// notePods updates the manager's memory from the observed pods of a Conversation: whether the
// session holds a slot or lacks room on the nodes, whether its Bind request is settled, and whether
// the cache contains its new pod.
func (r *conversationReconciler) notePods(o gathered) {
	if lifecycle.HoldsSlot(o.Pod) || lifecycle.HoldsSlot(o.OldPod) {
		r.queue.Hold(queueSession(o.Conversation))
	}
	if o.Pod != nil || o.Conversation.Status.State == v1alpha1.StateStopped {
		r.warmPause.note(client.ObjectKeyFromObject(o.Conversation), lifecycle.LacksRoom(o.Pod), o.Now)
	}
	if lifecycle.IsWarm(o.Pod) && lifecycle.RecordedAsBound(o.Conversation.Status, o.Pod) {
		r.binds.settle(o.Pod.UID)
	}
	if pod := o.Pod != nil || o.OldPod != nil; pod && r.memory.get(o.Conversation).podAttempt != 0 {
		r.memory.update(o.Conversation, func(m *memoryEntry) { m.podAttempt = 0 })
	}
}

// forget drops the memory of a deleted Conversation. The session keeps its slot until the garbage
// collector has deleted its pod. That deletion causes another reconcile.
func (r *conversationReconciler) forget(ctx context.Context, name types.NamespacedName) error {
	r.memory.forget(name)
	r.starts.Leave(name)
	r.warm.release(name)
	r.warmPause.note(name, false, r.clock.Now())
	pods, err := adoptedPods(ctx, r.client, name)
	if err != nil {
		return fmt.Errorf("list Pods: %w", err)
	}
	pod := &corev1.Pod{}
	err = r.client.Get(ctx, types.NamespacedName{Namespace: name.Namespace, Name: v1alpha1.SessionName(name.Name)}, pod)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	if err == nil {
		pods = append(pods, *pod)
	}
	for i := range pods {
		if owner := owningConversation(&pods[i]); lifecycle.HoldsSlot(&pods[i]) && owner != nil && owner.Name == name.Name {
			return nil
		}
	}
	r.queue.Leave(name)
	return nil
}
