package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;update

// sessionsService gives the sessions of a namespace their names: <conversation>.sessions.
const sessionsService = "sessions"

// namespaceReconciler keeps the Service and the NetworkPolicies of a namespace's sessions. The
// Conversation controller makes them before the first pod, so that no session ever runs without the
// policy.
type namespaceReconciler struct {
	client client.Client
	shared *sharedObjects
}

func (r *namespaceReconciler) setup(mgr ctrl.Manager) error {
	// A request is about a namespace and, as its name, a class whose sessions run there.
	ofObject := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		class := o.GetLabels()[v1alpha1.LabelSessionClass]
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: cmp.Or(class,
			v1alpha1.DefaultSessionClass)}}}
	})
	ofClass := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		var policies networkingv1.NetworkPolicyList
		if err := r.client.List(ctx, &policies, client.MatchingLabels{v1alpha1.LabelSessionClass: o.GetName()},
			client.UnsafeDisableDeepCopy); err != nil {
			return nil // the cache is stopping
		}
		var requests []reconcile.Request
		for i := range policies.Items {
			requests = append(requests,
				reconcile.Request{NamespacedName: types.NamespacedName{Namespace: policies.Items[i].Namespace, Name: o.GetName()}})
		}
		return requests
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("sessions").
		Watches(&corev1.Service{}, ofObject).
		Watches(&networkingv1.NetworkPolicy{}, ofObject).
		Watches(&v1alpha1.SessionClass{}, ofClass).
		Complete(r)
}

// Reconcile keeps the objects of one namespace as long as it has Conversations.
func (r *namespaceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var first v1alpha1.ConversationList
	if err := r.client.List(ctx, &first, client.InNamespace(req.Namespace), client.Limit(1),
		client.UnsafeDisableDeepCopy); err != nil || len(first.Items) == 0 {
		return reconcile.Result{}, err
	}
	found := &v1alpha1.SessionClass{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: req.Name}, found); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read SessionClass: %w", err)
	}
	err := r.shared.ensure(ctx, req.Namespace, class{req.Name, found.Spec})
	// A foreign object shows on the Conversations that need it. A namespace that is going away
	// takes nothing more.
	if foreign := (*foreignError)(nil); errors.As(err, &foreign) || apierrors.HasStatusCause(err,
		corev1.NamespaceTerminatingCause) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

// sharedObjects are what the sessions of a class share in a namespace.
type sharedObjects struct {
	client  client.Client
	live    client.Reader // past the cache
	options Options
	// checked are the versions, by namespace and class, that were as wanted: to compare them for each
	// of thousands of starts would be a twentieth of what a start costs.
	checked sync.Map
}

// ensure makes or fixes them. It reads the cache, and writes only where something differs.
func (s *sharedObjects) ensure(ctx context.Context, namespace string, class class) error {
	of, versions := client.ObjectKey{Namespace: namespace, Name: class.name}, s.versions(ctx, namespace, class)
	if known, ok := s.checked.Load(of); ok && versions != "" && known == versions {
		return nil
	}
	wantService, wantPolicy := buildService(namespace), buildNetworkPolicy(namespace, class, s.options)
	service, policy := &corev1.Service{}, &networkingv1.NetworkPolicy{}
	if err := s.ensureOne(ctx, "Service", wantService, service, func() bool {
		same := equality.Semantic.DeepDerivative(wantService.Spec, service.Spec)
		service.Spec.Selector, service.Spec.Ports = wantService.Spec.Selector, wantService.Spec.Ports
		return same
	}); err != nil {
		return err
	}
	if err := s.ensureOne(ctx, "NetworkPolicy", wantPolicy, policy, func() bool {
		same := equality.Semantic.DeepEqual(wantPolicy.Spec, policy.Spec)
		policy.Spec = wantPolicy.Spec
		return same
	}); err != nil {
		return err
	}
	// If they were not as wanted they have other versions by now, and these are not seen again.
	s.checked.Store(of, versions)
	return nil
}

// versions of the objects that are there, and what they should be made of; empty if one is missing.
func (s *sharedObjects) versions(ctx context.Context, namespace string, class class) string {
	service, policy := &corev1.Service{}, &networkingv1.NetworkPolicy{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: sessionsService}, service,
		client.UnsafeDisableDeepCopy)
	if err == nil {
		err = s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: policyName(class.name)}, policy,
			client.UnsafeDisableDeepCopy)
	}
	if err != nil {
		return "" // ensureOne tells
	}
	return fmt.Sprintln(service.UID, service.ResourceVersion, policy.UID, policy.ResourceVersion, class.egressAllow())
}

// ensureOne creates want, or updates the one that is there if amend says that it was not as
// wanted. Only labelled objects are in the cache, so what exists although the cache has none may be
// somebody else's.
func (s *sharedObjects) ensureOne(ctx context.Context, kind string, want, have client.Object, amend func() bool) error {
	err := s.client.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		err = s.client.Create(ctx, want)
		if apierrors.IsAlreadyExists(err) {
			// Ours, and the cache has not seen it yet, or somebody else's.
			if err = s.live.Get(ctx, client.ObjectKeyFromObject(want), have); err == nil &&
				have.GetLabels()[v1alpha1.LabelManagedBy] != v1alpha1.ManagedBy {
				return &foreignError{kind: kind, name: want.GetName()}
			}
		}
	case err == nil && !amend():
		err = s.client.Update(ctx, have)
	}
	if err != nil {
		return fmt.Errorf("keep %s %s: %w", kind, want.GetName(), err)
	}
	return nil
}

func sharedMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{
		v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
		v1alpha1.LabelComponent: v1alpha1.ComponentSession,
	}}
}

func sessionSelector() map[string]string {
	return map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
		v1alpha1.LabelComponent: v1alpha1.ComponentSession}
}

func buildService(namespace string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: sharedMeta(namespace, sessionsService),
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone,
			Selector:  sessionSelector(),
			Ports: []corev1.ServicePort{{Name: "session", Port: session.Port, TargetPort: intstr.FromInt32(session.Port),
				Protocol: corev1.ProtocolTCP}},
		},
	}
}
