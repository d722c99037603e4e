package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/objects"
)

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;update

// namespaceReconciler maintains the Service and the NetworkPolicies of a namespace's sessions. The
// controllers of Conversations and warm pods create these objects before the first pod, so that no
// pod runs without a NetworkPolicy.
type namespaceReconciler struct {
	client     client.Client
	namespaces *namespaceObjects
	warm       *warmSet
}

func (r *namespaceReconciler) setup(mgr ctrl.Manager) error {
	// The name in a reconcile request is the name of a class that has sessions in the namespace of the
	// request.
	ofObject := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		class := o.GetLabels()[v1alpha1.LabelSessionClass]
		return []reconcile.Request{requestFor(o.GetNamespace(), cmp.Or(class, v1alpha1.DefaultSessionClass))}
	})
	ofClass := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		var policies networkingv1.NetworkPolicyList
		if err := r.client.List(ctx, &policies, client.MatchingLabels{v1alpha1.LabelSessionClass: o.GetName()},
			client.UnsafeDisableDeepCopy); err != nil {
			return nil // the cache is stopping
		}
		var requests []reconcile.Request
		for i := range policies.Items {
			requests = append(requests, requestFor(policies.Items[i].Namespace, o.GetName()))
		}
		return requests
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("sessions").
		Watches(&corev1.Service{}, ofObject).
		Watches(&networkingv1.NetworkPolicy{}, ofObject).
		Watches(&v1alpha1.SessionClass{}, ofClass, specChanged).
		Complete(r)
}

// Reconcile maintains the shared objects of a namespace while the namespace has Conversations or
// warm pods.
func (r *namespaceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var first v1alpha1.ConversationList
	if err := r.client.List(ctx, &first, client.InNamespace(req.Namespace), client.Limit(1),
		client.UnsafeDisableDeepCopy); err != nil || len(first.Items) == 0 && !r.warm.has(req.Namespace, req.Name) {
		return reconcile.Result{}, err
	}
	found := &v1alpha1.SessionClass{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: req.Name}, found); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read SessionClass: %w", err)
	}
	err := r.namespaces.ensure(ctx, req.Namespace, objects.Class{Name: req.Name, Spec: found.Spec})
	// These errors need no retry: Conversations report a foreign object that they need, and no
	// object can be created in a terminating namespace.
	if foreign := (*foreignError)(nil); errors.As(err, &foreign) || apierrors.HasStatusCause(err,
		corev1.NamespaceTerminatingCause) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

// namespaceObjects maintains the objects that the sessions of a class share in a namespace.
type namespaceObjects struct {
	client  client.Client
	live    client.Reader // bypasses the cache
	options Options
}

// ensure creates or corrects the shared objects. It reads the cache, and writes only differences.
func (n *namespaceObjects) ensure(ctx context.Context, namespace string, class objects.Class) error {
	wantService := objects.Service(namespace)
	if err := ensureOne(ctx, n, "Service", wantService, func(service *corev1.Service) bool {
		same := equality.Semantic.DeepDerivative(wantService.Spec, service.Spec)
		service.Spec.Selector, service.Spec.Ports = wantService.Spec.Selector, wantService.Spec.Ports
		return same
	}); err != nil {
		return err
	}
	wantPolicy := objects.NetworkPolicy(namespace, class, n.options.Namespace, n.options.EgressAllow)
	return ensureOne(ctx, n, "NetworkPolicy", wantPolicy, func(policy *networkingv1.NetworkPolicy) bool {
		same := equality.Semantic.DeepEqual(wantPolicy.Spec, policy.Spec)
		policy.Spec = wantPolicy.Spec
		return same
	})
}

// ensureOne creates the object want, or corrects the existing object. correct() changes
// an object to match want, and reports whether it already matched.
//
// The cache holds only objects with Parley's label. If an object exists but is not in the cache,
// ensureOne therefore checks whether the object is foreign. The cache also drops some fields of its
// objects, so ensureOne reads an object from the API server before it updates the object.
func ensureOne[K any, O interface {
	*K
	client.Object
}](ctx context.Context, n *namespaceObjects, kind string, want O, correct func(O) bool) error {
	key, cached, current := client.ObjectKeyFromObject(want), O(new(K)), O(new(K))
	err := n.client.Get(ctx, key, cached)
	switch {
	case apierrors.IsNotFound(err):
		err = n.client.Create(ctx, want)
		if apierrors.IsAlreadyExists(err) {
			// The object is Parley's and not in the cache yet, or it is foreign.
			if err = n.live.Get(ctx, key, current); err == nil &&
				current.GetLabels()[v1alpha1.LabelManagedBy] != v1alpha1.ManagedBy {
				return &foreignError{kind: kind, name: want.GetName()}
			}
		}
	case err == nil && !correct(cached):
		if err = n.live.Get(ctx, key, current); err == nil && !correct(current) {
			err = n.client.Update(ctx, current)
		}
	}
	if err != nil {
		return fmt.Errorf("ensure %s %s: %w", kind, want.GetName(), err)
	}
	return nil
}
