package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/slimcache"
)

// +kubebuilder:rbac:groups=parley.dev,resources=usersettings,verbs=get;list;watch
// +kubebuilder:rbac:groups=parley.dev,resources=usersettings/status,verbs=update
// +kubebuilder:rbac:groups=parley.dev,resources=usersettings/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

// secretDelay is the delay after a change of a Secret. One request to the facade may change several
// Secrets, which are then handled together.
const secretDelay = 500 * time.Millisecond

// conflictDelay is the delay before a retry of a status write that conflicted.
const conflictDelay = 100 * time.Millisecond

// userSettingsReconciler maintains a user's session key, adopts and prunes the Secrets that the
// facade wrote for the user, and reports which references resolve.
type userSettingsReconciler struct {
	client   client.Client
	cache    client.Reader // metadata of Secrets
	live     client.Reader // bypasses the cache
	clock    clock.PassiveClock
	recorder events.EventRecorder
	// resolved holds the result of each checkedReference. Without it, the manager would read all
	// Secrets of a user after each change of one Secret.
	resolved *lru.Cache
	// foreign maps the UID of a foreign Secret to its resourceVersion. A foreign Secret has a label of
	// managed Secrets, but the wrong type or another owner.
	foreign *lru.Cache
}

// maxRemembered is the maximum number of entries in each cache of a reconciler. After r.resolved
// or r.foreign drops an entry, the manager reads the Secret of the entry again.
const maxRemembered = 1 << 14

func newUserSettingsReconciler(c client.Client, metadata, live client.Reader, clock clock.PassiveClock,
	recorder events.EventRecorder) *userSettingsReconciler {
	return &userSettingsReconciler{client: c, cache: metadata, live: live, clock: clock, recorder: recorder,
		resolved: lru.New(maxRemembered), foreign: lru.New(maxRemembered)}
}

func (r *userSettingsReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("usersettings").
		For(&v1alpha1.UserSettings{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.UserSettings{}, handler.EnqueueRequestsFromMapFunc(r.heirs),
			builder.WithPredicates(inheritability)).
		WatchesMetadata(&corev1.Secret{}, afterDelay(secretDelay, r.settingsOfSecret)).
		Complete(r)
}

type workQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// afterDelay enqueues requests for changed objects with a delay. Several changes within the delay
// cause one reconcile. Objects that exist when the manager starts do not count as changed.
func afterDelay(delay time.Duration, requests handler.MapFunc) handler.Funcs {
	add := func(ctx context.Context, o client.Object, q workQueue) {
		for _, request := range requests(ctx, o) {
			q.AddAfter(request, delay)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workQueue) {
			if !e.IsInInitialList {
				add(ctx, e.Object, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workQueue) { add(ctx, e.ObjectNew, q) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workQueue) { add(ctx, e.Object, q) },
	}
}

func (r *userSettingsReconciler) heirs(ctx context.Context, o client.Object) []reconcile.Request {
	return heirs(ctx, r.client, client.ObjectKeyFromObject(o))
}

// settingsOfSecret returns requests for all UserSettings objects that refer to a Secret. If the
// Secret is managed for a UserSettings object, the result includes a request for that object.
func (r *userSettingsReconciler) settingsOfSecret(ctx context.Context, secret client.Object) []reconcile.Request {
	requests := requestsForSecret(ctx, r.client, &v1alpha1.UserSettingsList{}, secret)
	if name := managedFor(secret); name != "" {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: secret.GetNamespace(),
			Name: name}})
	}
	return requests
}

// Reconcile brings one UserSettings to its requested state.
func (r *userSettingsReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	settings := &v1alpha1.UserSettings{}
	if err := r.client.Get(ctx, req.NamespacedName, settings); err != nil || settings.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if slimcache.Truncated(settings) {
		// The cache truncated these settings, so references to Secrets may be missing. Read the
		// complete settings, so that no Secret in use is pruned.
		settings = &v1alpha1.UserSettings{}
		if err := r.live.Get(ctx, req.NamespacedName, settings); err != nil || settings.DeletionTimestamp != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	secrets := newSecretReader(r.client, settings.Namespace)
	key, err := r.sessionKey(ctx, settings, secrets)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return reconcile.Result{}, nil // the settings are deleted with the namespace
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("ensure the session key: %w", err)
	}
	blockers, err := r.resolve(ctx, settings, secrets)
	if err != nil {
		return reconcile.Result{}, err
	}
	pruneIn, err := r.adoptAndPrune(ctx, settings)
	if err != nil {
		return reconcile.Result{}, err
	}
	err = r.writeStatus(ctx, settings, lifecycle.NewSettingsStatus(settings, key, blockers))
	if apierrors.IsConflict(err) {
		// The cached UserSettings object is stale. The watch event of the newer object possibly causes no
		// reconcile, because the predicate drops events that leave the generation unchanged. Therefore,
		// retry after a delay.
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return reconcile.Result{RequeueAfter: pruneIn}, err
}

// resolve checks every reference and the inherited settings. It returns the first blocker of each
// condition.
func (r *userSettingsReconciler) resolve(ctx context.Context, settings *v1alpha1.UserSettings,
	secrets *secretReader) (map[string]*lifecycle.Blocker, error) {
	blockers := map[string]*lifecycle.Blocker{}
	for _, ref := range settings.SecretReferences() {
		if ref.Condition == v1alpha1.ConditionSessionKeyReady {
			continue // the session key has rules of its own
		}
		blocker, err := r.check(ctx, secrets, ref)
		if err != nil {
			return nil, err
		}
		if blockers[ref.Condition] == nil {
			blockers[ref.Condition] = blocker
		}
	}
	if settings.Spec.InheritFrom == nil {
		return blockers, nil
	}
	_, blocker, err := effectiveSettings(ctx, r.client, settings)
	blockers[v1alpha1.ConditionInheritFromResolved] = blocker
	return blockers, err
}

// checkedReference identifies a checked reference: the version of the Secret, the path of the field
// that refers to the Secret, and the key in the Secret.
type checkedReference struct {
	secret               types.UID
	version, path, value string
}

// check returns the blocker of a reference. It reads each version of a Secret one time.
func (r *userSettingsReconciler) check(ctx context.Context, secrets *secretReader,
	ref v1alpha1.SecretReference) (*lifecycle.Blocker, error) {
	reference := func(secret client.Object) checkedReference {
		return checkedReference{secret.GetUID(), secret.GetResourceVersion(), ref.Path.String(), ref.Ref.Key}
	}
	seen := secretMetadata()
	err := r.cache.Get(ctx, client.ObjectKey{Namespace: secrets.namespace, Name: ref.Ref.Name}, seen)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if known, found := r.resolved.Get(reference(seen)); err == nil && found {
		return known.(*lifecycle.Blocker), nil
	}
	_, blocker, err := secrets.value(ctx, ref)
	if err != nil {
		return nil, err
	}
	if secret, err := secrets.secret(ctx, ref.Ref.Name); err == nil && secret.UID != "" {
		r.resolved.Add(reference(secret), blocker)
	}
	return blocker, nil
}

// writeStatus writes the status if it changed, and emits an event if the session key changed.
func (r *userSettingsReconciler) writeStatus(ctx context.Context, settings *v1alpha1.UserSettings,
	status v1alpha1.UserSettingsStatus) error {
	before := settings.Status
	if equality.Semantic.DeepEqual(before, status) {
		return nil
	}
	settings = settings.DeepCopy()
	settings.Status = status
	if err := r.client.Status().Update(ctx, settings); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("write the status of UserSettings: %w", err)
	}
	if before.SessionKeyHash != "" && before.SessionKeyHash != status.SessionKeyHash {
		r.recorder.Eventf(settings, nil, corev1.EventTypeNormal, "SessionKeyChanged", "PublishKey",
			"The session key changed; the HTTP facade no longer accepts the previous key")
	}
	return nil
}

func sinceWritten(secret metav1.Object, now time.Time) time.Duration {
	written, err := time.Parse(time.RFC3339, secret.GetAnnotations()[v1alpha1.AnnotationWrittenAt])
	if err != nil {
		written = secret.GetCreationTimestamp().Time
	}
	return now.Sub(written)
}
