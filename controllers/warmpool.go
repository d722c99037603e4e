package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// +kubebuilder:rbac:roleName=parley-manager-namespaces,groups="",resources=namespaces,verbs=list;watch
// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=parley.dev,resources=sessionclasses/status,verbs=update

const (
	warmWorkers = 2
	// warmBatch is the maximum number of warm pods that one reconcile creates.
	warmBatch = 8
	// warmDelay is the time from a change of a pool to the reconcile, so that several changes cause
	// one reconcile. warmBusyDelay is the time to the next reconcile of a busy pool. warmStatusDelay
	// is the shortest time between two writes of the status of a class.
	warmDelay, warmBusyDelay, warmStatusDelay = 100 * time.Millisecond, 200 * time.Millisecond, 3 * time.Second
	// warmQuiet is the usual pause between the last claim of a pod and the refill of its pool.
	warmQuiet = 500 * time.Millisecond
	// bindDelay is how long a Bind request in flight delays the refill of the pools in its namespace.
	// The request ends when its session is ready. A session that needs longer, for example for a large
	// clone, mostly waits for the network.
	bindDelay = time.Second
	// warmPatience limits how long a pool waits to be refilled. After this time, it is refilled
	// even while sessions claim its pods or are starting.
	warmPatience = 5 * time.Second
	// warmCheckInterval is the interval at which pools are checked for changes that cause no event,
	// such as a new default StorageClass.
	warmCheckInterval = 5 * time.Minute
)

// warmPoolReconciler maintains the warm pods of the classes. A reconcile request names a class and
// a namespace. A reconcile request without a namespace is about the status of the class.
type warmPoolReconciler struct {
	*gatherer
	client     client.Client
	namespaces *namespaceObjects
	set        *warmSet
	pause      *warmPause
	paused     chan event.GenericEvent
	// starting reports whether a Conversation waits to be reconciled, or a Bind request of this
	// namespace has been in flight for less than bindDelay.
	starting func(namespace string) bool

	mu sync.Mutex
	// counted maps a class to the counts in its status that this manager wrote last. The manager
	// writes new counts only if they differ from these counts. Otherwise, managers of different
	// namespaces would overwrite each other's counts again and again.
	counted map[string]v1alpha1.SessionClassStatus
	// waiting maps a pool to the time at which it began to wait for a refill.
	waiting map[poolKey]time.Time
}

func newWarmPoolReconciler(r *conversationReconciler) *warmPoolReconciler {
	p := &warmPoolReconciler{gatherer: &r.gatherer, client: r.client, namespaces: r.namespaces, set: r.warm,
		pause: &r.warmPause, paused: make(chan event.GenericEvent, 1024),
		starting: func(namespace string) bool { return r.backlog() > 0 || r.calls.Recent(namespace, bindDelay) },
		counted:  map[string]v1alpha1.SessionClassStatus{}, waiting: map[poolKey]time.Time{}}
	p.pause.changed = func(namespace string) {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		select {
		case p.paused <- event.GenericEvent{Object: object}:
		default: // the pool is checked regularly
		}
	}
	return p
}

func (r *warmPoolReconciler) setup(mgr ctrl.Manager) error {
	ofPod := func(_ context.Context, o client.Object) []reconcile.Request {
		if !lifecycle.IsWarm(o.(*corev1.Pod)) {
			return nil
		}
		return []reconcile.Request{requestFor(o.GetNamespace(), o.GetLabels()[v1alpha1.LabelSessionClass])}
	}
	ofClass := func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.poolsOfClass(ctx, o.(*v1alpha1.SessionClass))
	}
	isSigningKey := predicate.NewPredicateFuncs(func(o client.Object) bool {
		return client.ObjectKeyFromObject(o) == r.options.signingKey()
	})
	// An event of a pod may reach this controller before r.set contains the change of the pod. Each
	// update of r.set therefore causes a reconcile, too.
	afterUpdate := source.Func(func(ctx context.Context, q workQueue) error {
		updated := func(pod *corev1.Pod) { delayedPools(ofPod).Generic(ctx, event.GenericEvent{Object: pod}, q) }
		r.set.updated.Store(&updated)
		return nil
	})
	controlled := ctrl.NewControllerManagedBy(mgr).
		Named("warm-pool").
		Watches(&corev1.Pod{}, delayedPools(ofPod)).
		Watches(&v1alpha1.SessionClass{}, delayedPools(ofClass), specChanged).
		WatchesMetadata(&corev1.Secret{}, delayedPools(r.allPools), builder.WithPredicates(isSigningKey)).
		WatchesRawSource(source.Channel(r.paused, delayedPools(r.poolsOfNamespace))).
		WatchesRawSource(afterUpdate).
		WithOptions(controller.Options{MaxConcurrentReconciles: warmWorkers})
	if len(r.options.Namespaces) == 0 {
		controlled = controlled.WatchesMetadata(&corev1.Namespace{}, delayedPools(r.poolsOfNamespace))
	}
	return controlled.Complete(r)
}

// delayedPools returns a handler of changes. For each pool that a change concerns, it enqueues a
// request for the pool after warmDelay, and a request for the status of the pool's class after
// warmStatusDelay.
func delayedPools(pools handler.MapFunc) handler.Funcs {
	add := func(ctx context.Context, o client.Object, q workQueue) {
		for _, request := range pools(ctx, o) {
			if request.Namespace != "" {
				q.AddAfter(request, warmDelay)
			}
			q.AddAfter(requestFor("", request.Name), warmStatusDelay)
		}
	}
	return handler.Funcs{
		CreateFunc:  func(ctx context.Context, e event.CreateEvent, q workQueue) { add(ctx, e.Object, q) },
		UpdateFunc:  func(ctx context.Context, e event.UpdateEvent, q workQueue) { add(ctx, e.ObjectNew, q) },
		DeleteFunc:  func(ctx context.Context, e event.DeleteEvent, q workQueue) { add(ctx, e.Object, q) },
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q workQueue) { add(ctx, e.Object, q) },
	}
}

// poolsOfClass returns a request for the status of the class. It also returns requests for the
// namespaces that the class selects, and for the namespaces that have warm pods of the class.
func (r *warmPoolReconciler) poolsOfClass(ctx context.Context, class *v1alpha1.SessionClass) []reconcile.Request {
	requests := []reconcile.Request{requestFor("", class.Name)}
	selected, err := r.selectedNamespaces(ctx, class)
	if err != nil {
		return requests // the cache is stopping
	}
	for _, namespace := range slices.Compact(slices.Sorted(slices.Values(append(selected,
		r.set.namespaces(class.Name)...)))) {
		requests = append(requests, requestFor(namespace, class.Name))
	}
	return requests
}

// allPools returns requests for the pools of all classes, because the signing key changed.
func (r *warmPoolReconciler) allPools(ctx context.Context, _ client.Object) (requests []reconcile.Request) {
	var classes v1alpha1.SessionClassList
	if err := r.cache.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	for i := range classes.Items {
		if class := &classes.Items[i]; class.Spec.Warm != nil {
			requests = append(requests, r.poolsOfClass(ctx, class)...)
		}
	}
	return requests
}

func (r *warmPoolReconciler) poolsOfNamespace(ctx context.Context,
	namespace client.Object) (requests []reconcile.Request) {
	var classes v1alpha1.SessionClassList
	if err := r.cache.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	names := r.set.classes(namespace.GetName())
	for i := range classes.Items {
		if class := &classes.Items[i]; class.Spec.Warm != nil {
			names = append(names, class.Name)
		}
	}
	for _, class := range slices.Compact(slices.Sorted(slices.Values(names))) {
		requests = append(requests, requestFor(namespace.GetName(), class))
	}
	return requests
}

// Reconcile deletes outdated and surplus pods of a pool, and creates missing pods if the pool is
// not busy or is overdue. For a request without a namespace, it writes the status of the class.
func (r *warmPoolReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.set.synced() {
		return reconcile.Result{RequeueAfter: warmDelay}, nil
	}
	class := &v1alpha1.SessionClass{}
	if err := r.cache.Get(ctx, client.ObjectKey{Name: req.Name}, class); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read SessionClass: %w", err)
	}
	if req.Namespace == "" {
		class.Name = req.Name
		return r.writeStatus(ctx, class)
	}
	keys, unready, err := r.signingKeys(ctx)
	if err != nil || unready != nil || len(keys.snapshots) == 0 {
		return reconcile.Result{RequeueAfter: warmCheckInterval}, err
	}
	pods, err := r.builder(ctx, req.Namespace, class, keys)
	if err != nil {
		return reconcile.Result{}, err
	}
	now, key, wanted := r.options.Clock.Now(), poolKey{req.Namespace, req.Name}, 0
	left := r.pause.left(req.Namespace, now)
	if pods != nil {
		wanted = int(class.Spec.Warm.Size)
	}
	missing, starting, err := r.trim(ctx, key, pods, wanted, now)
	if pods == nil || missing <= 0 {
		r.stopWaiting(key)
	}
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case pods == nil:
		return reconcile.Result{}, nil
	case left > 0:
		return reconcile.Result{RequeueAfter: left}, nil
	case missing > 0:
		return r.refill(ctx, key, pods, keys, missing, now)
	case starting:
		return reconcile.Result{RequeueAfter: podTimeout}, nil
	}
	return reconcile.Result{RequeueAfter: warmCheckInterval}, nil
}

// builder returns the builder of a pool's pods; nil if the class has no warm pods in the namespace.
func (r *warmPoolReconciler) builder(ctx context.Context, namespace string,
	class *v1alpha1.SessionClass, keys signingKeys) (*objects.WarmPods, error) {
	known, err := r.namespaceLabels(ctx, namespace)
	if err != nil {
		return nil, fmt.Errorf("read Namespace: %w", err)
	}
	if known == nil || !warmSelector(class).Matches(known) {
		return nil, nil
	}
	workspace, err := r.workspaceKind(ctx, &v1alpha1.Conversation{},
		objects.Class{Name: class.Name, Spec: class.Spec})
	if err != nil {
		return nil, err
	}
	return objects.NewWarmPods(namespace, class, workspace, r.options.RuntimeImage, keys.snapshots)
}

// refill creates missing pods if the pool is not busy or is overdue.
func (r *warmPoolReconciler) refill(ctx context.Context, key poolKey, pods *objects.WarmPods, keys signingKeys,
	missing int, now time.Time) (reconcile.Result, error) {
	overdue := r.overdue(key, now)
	if !overdue && r.busy(key, pods, missing) {
		return reconcile.Result{RequeueAfter: warmBusyDelay}, nil
	}
	r.stopWaiting(key)
	err := r.namespaces.ensure(ctx, key.namespace, objects.Class{Name: key.class, Spec: pods.Owner.Spec})
	if err == nil {
		for range min(missing, warmBatch) {
			if !overdue && r.busy(key, pods, missing) {
				return reconcile.Result{RequeueAfter: warmBusyDelay}, nil
			}
			if err = r.create(ctx, key, pods, keys); err != nil {
				break
			}
		}
	}
	foreign := (*foreignError)(nil)
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconcile.Result{}, nil
	case isRefusal(err) || errors.As(err, &foreign):
		ctrl.LoggerFrom(ctx).Info("Cannot create warm pods", "reason", stableMessage(err))
		r.pause.refused(key.namespace, now)
		return reconcile.Result{RequeueAfter: max(r.pause.left(key.namespace, now), minRetryDelay)}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: warmDelay}, nil
}

// busy reports whether the pool must not be refilled now: sessions are starting, or a session
// claimed a pod of the pool less than warmQuiet ago. A recent claim does not matter if less than a
// quarter of the pods is left.
func (r *warmPoolReconciler) busy(key poolKey, pods *objects.WarmPods, missing int) bool {
	low := 4*missing > 3*int(pods.Owner.Spec.Warm.Size)
	return r.starting(key.namespace) || !low && r.options.Clock.Since(r.set.lastClaim(key)) < warmQuiet
}

// overdue reports whether a pool has waited to be refilled for at least warmPatience. The first
// call begins the wait. An overdue pool is refilled even while sessions are starting. Otherwise,
// many starts in one namespace would keep the pools of all other namespaces empty.
func (r *warmPoolReconciler) overdue(key poolKey, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, waits := r.waiting[key]
	if !waits {
		r.waiting[key] = now
	}
	return waits && now.Sub(since) >= warmPatience
}

func (r *warmPoolReconciler) stopWaiting(key poolKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, key)
}

// create creates a pod, and then its Secret and the PersistentVolumeClaim of its volume. The pod
// waits for both objects, and they are deleted with the pod. If the API server refuses one of them,
// create deletes the pod. After any other error, the pod stays: the object may exist, and a session
// may have adopted the pod. If the object does not exist, trim deletes the pod.
func (r *warmPoolReconciler) create(ctx context.Context, key poolKey, pods *objects.WarmPods,
	keys signingKeys) error {
	pod := pods.Pod()
	r.set.expect(key, pod.Name, r.options.Clock.Now())
	if err := r.client.Create(ctx, pod); err != nil {
		r.set.unexpect(key, pod.Name)
		return fmt.Errorf("create a warm pod: %w", err)
	}
	secret, err := pods.Secret(pod, keys.snapshots)
	if err == nil {
		err = r.client.Create(ctx, secret)
	}
	volume, volumeErr := pods.Volume(pod)
	if err = cmp.Or(err, volumeErr); err == nil && volume != nil {
		err = r.client.Create(ctx, volume)
	}
	switch {
	case err == nil:
		return nil
	case isRefusal(err):
		removed := r.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
		err = errors.Join(err, client.IgnoreNotFound(removed))
	}
	return fmt.Errorf("create the Secret and the volume of a warm pod: %w", err)
}
