package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// +kubebuilder:rbac:groups=parley.dev,resources=conversations,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=parley.dev,resources=conversations/status,verbs=update
// +kubebuilder:rbac:groups=parley.dev,resources=conversations/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods;persistentvolumeclaims,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch

// conversationReconciler runs one pod for each Conversation that wants one, and says how it is.
type conversationReconciler struct {
	client   client.Client
	live     client.Reader // past the cache
	metadata client.Reader // the cache, for metadata of Secrets
	clock    clock.PassiveClock
	recorder events.EventRecorder
	options  Options
	ledger   *ledger
	signing  *signingKey
	shared   *sharedObjects
	// overwritten are the Conversations as they were before their status was written.
	overwritten overwritten
	starts      starts
	settings    freshSettings
	// catalogue of agents and prices of models, as they are now.
	catalogue held[map[string]catalogueEntry]
	prices    held[pricedModels]
	// queue of what is to be looked at; nil in a reconciler that has none.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func (r *conversationReconciler) setup(mgr ctrl.Manager) error {
	if err := registerStateMetric(mgr.GetCache()); err != nil {
		return err
	}
	ofSettings := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return requestsFor(ctx, r.client, &v1alpha1.ConversationList{}, o.GetNamespace(), v1alpha1.IndexUserSettingsName,
			o.GetName())
	})
	// Owns would ask the RESTMapper about each event.
	ofOwner := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return requestsForOwner(o)
	})
	ofConfigMap := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		if key := client.ObjectKeyFromObject(o); key == r.catalogueKey() || key == r.modelsKey() {
			return r.waiting(ctx)
		}
		return requestsFor(ctx, r.client, &v1alpha1.ConversationList{}, o.GetNamespace(), indexConfigMapName, o.GetName())
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("conversation").
		For(&v1alpha1.Conversation{}, builder.WithPredicates(r.starts.ofConversations())).
		Watches(&corev1.Pod{}, ofOwner, builder.WithPredicates(r.starts.ofPods())).
		Watches(&corev1.PersistentVolumeClaim{}, ofOwner).
		Watches(&v1alpha1.SessionClass{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context,
			_ client.Object) []reconcile.Request {
			return r.waiting(ctx)
		})).
		Watches(&v1alpha1.UserSettings{}, ofSettings, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(func(_ context.Context,
			queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.queue = queue
			return nil
		})).
		WatchesRawSource(source.Channel(r.ledger.free, &handler.EnqueueRequestForObject{})).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.conversationsOfSecret),
			builder.WithPredicates(r.starts.ofSecrets())).
		WatchesMetadata(&corev1.ConfigMap{}, ofConfigMap).
		Complete(r)
}

// waiting are the Conversations of all namespaces that may wait for an agent, a price or the
// signing key: those that neither run nor are over.
func (r *conversationReconciler) waiting(ctx context.Context) []reconcile.Request {
	var list v1alpha1.ConversationList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil // the cache is stopping
	}
	var requests []reconcile.Request
	for i := range list.Items {
		c := &list.Items[i]
		over := c.Status.State == v1alpha1.StateStopped && c.Status.Reason != v1alpha1.ReasonSettingsMissing
		if c.Status.State != v1alpha1.StateRunning && !over {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
		}
	}
	return requests
}

// conversationsOfSecret are those that refer to a Secret, themselves or through their settings, and
// its owner.
func (r *conversationReconciler) conversationsOfSecret(ctx context.Context, secret client.Object) []reconcile.Request {
	namespace, name := secret.GetNamespace(), secret.GetName()
	if client.ObjectKeyFromObject(secret) == r.signing.name {
		return r.waiting(ctx)
	}
	requests := requestsFor(ctx, r.client, &v1alpha1.ConversationList{}, namespace, indexSecretName, name)
	for _, settings := range requestsFor(ctx, r.client, &v1alpha1.UserSettingsList{}, namespace, indexSecretName, name) {
		requests = append(requests, requestsFor(ctx, r.client, &v1alpha1.ConversationList{}, namespace,
			v1alpha1.IndexUserSettingsName, settings.Name)...)
	}
	return append(requests, requestsForOwner(secret)...)
}

// Reconcile brings one Conversation to what it asks for: gather, judge, record, act, write.
func (r *conversationReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if err := r.ledger.ready(ctx, r.client); err != nil {
		return reconcile.Result{}, err
	}
	r.starts.looks(req.NamespacedName)
	conversation := &v1alpha1.Conversation{}
	err := r.client.Get(ctx, req.NamespacedName, conversation)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.forget(ctx, req.NamespacedName)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read Conversation: %w", err)
	}
	if r.overwritten.has(conversation) {
		return reconcile.Result{}, nil
	}
	o, start, err := r.gather(ctx, conversation)
	if err != nil {
		return reconcile.Result{}, err
	}
	if takesPlace(o.pod) || takesPlace(o.old) {
		r.ledger.hold(conversation)
	}
	verdict := judge(o)
	if mustRecord(conversation.Status, verdict) {
		// The event of this write brings us back, to act on what is recorded.
		_, err := r.writeStatus(ctx, o, verdict)
		return reconcile.Result{}, err
	}
	stuck, err := r.act(ctx, o, start, verdict)
	if err != nil {
		return reconcile.Result{}, err // nothing is written of what was not done
	}
	keeps, err := r.keepsPlace(ctx, o, start, verdict, stuck)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !keeps {
		r.ledger.leave(req.NamespacedName)
	}
	verdict.podless = o.pod == nil && o.old == nil && verdict.wish != needPod && stuck == nil
	if stuck != nil && verdict.wish == needPod {
		verdict = verdict.because(o, stuck)
	}
	wait, err := r.writeStatus(ctx, o, verdict)
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.next(ctx, o, verdict, stuck, wait)
}

// keepsPlace says whether a session goes on to have what it has, a place or one among those who
// wait. Who is over, or cannot start, holds up nobody who could.
func (r *conversationReconciler) keepsPlace(ctx context.Context, o observation, start *sessionStart, v verdict,
	stuck *problem) (bool, error) {
	switch {
	case takesPlace(o.pod) || takesPlace(o.old):
		return true, nil
	case o.paused:
		return true, nil // it neither tried nor asked for a place
	case stuck == nil:
		return v.state != v1alpha1.StateStopped, nil
	case stuck.reason == v1alpha1.ReasonForeignObject:
		return false, nil
	case stuck.reason != v1alpha1.ReasonRejected:
		return true, nil // it has none, or has one and waits until something of it is gone
	}
	// The API server refuses a pod that is there as well, before it looks whether there is one; and
	// the cache may not show that one yet.
	if err := r.live.Get(ctx, sessionObject(o.conversation), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		return true, err
	}
	bounded := start != nil && start.class.spec.MaxSessionsPerUser != nil
	return bounded && r.ledger.mayTryOnceMore(client.ObjectKeyFromObject(o.conversation)), nil
}

// forget a Conversation that is gone. Its place is free once its pod is gone too, which the garbage
// collector removes, and whose end brings us back.
func (r *conversationReconciler) forget(ctx context.Context, name types.NamespacedName) error {
	r.overwritten.forget(name)
	r.starts.shown(name)
	r.starts.refused.Delete(name)
	pod := &corev1.Pod{}
	err := r.client.Get(ctx, types.NamespacedName{Namespace: name.Namespace, Name: v1alpha1.SessionName(name.Name)}, pod)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	if owner := owningConversation(pod); err == nil && takesPlace(pod) && owner != nil && owner.Name == name.Name {
		return nil
	}
	r.ledger.leave(name)
	return nil
}

// mustRecord: another attempt, and a stop, are on record before anything is made or removed for
// them. Whatever fails then, or whoever comes after, goes on from there.
func mustRecord(status v1alpha1.ConversationStatus, v verdict) bool {
	return v.next != nil || v.state == v1alpha1.StateStopped && (status.State != v.state || status.Reason != v.reason)
}

// act makes or removes what the verdict asks for. What stands in its way and does not go away by
// trying again at once is no error.
func (r *conversationReconciler) act(ctx context.Context, o observation, start *sessionStart, v verdict) (*problem,
	error) {
	var err error
	switch {
	case v.wish == needPod && o.old != nil:
		err = r.removePod(ctx, o.old)
	case v.wish == needPod && start != nil:
		if err = r.start(ctx, o.conversation, start); isRefusal(err) && !o.paused {
			r.starts.refuses(o.conversation, err, o.now)
		}
	case v.wish == removePod:
		err = r.removeSession(ctx, o)
	case v.wish == keepEnded:
		err = r.removeSecret(ctx, o.conversation)
	}
	if stuck := stuckOn(err); stuck != nil {
		return stuck, nil
	}
	return nil, err
}

// stuckOn is the problem in an error that does not go away by trying again at once; nil if it may.
func stuckOn(err error) *problem {
	if foreign := (*foreignError)(nil); errors.As(err, &foreign) {
		return &problem{v1alpha1.ReasonForeignObject, foreign.Error()}
	}
	if refused := (*notAllowedError)(nil); errors.As(err, &refused) {
		return refused.problem
	}
	if leaving := (*leavingError)(nil); errors.As(err, &leaving) {
		return &problem{v1alpha1.ReasonScheduling, leaving.Error()}
	}
	if isRefusal(err) {
		return &problem{v1alpha1.ReasonRejected, stableWords(err)}
	}
	return nil
}

// stableWords are those of an error without what changes from one try to the next: a quota says how
// much of it is used. A status that changed each time would be written, and looked at, without end.
func stableWords(err error) string {
	words, _, _ := strings.Cut(err.Error(), ", requested: ")
	return words
}

// writeStatus writes the status if that is due, and tells what a person or a graph would want to
// know of the change.
func (r *conversationReconciler) writeStatus(ctx context.Context, o observation, v verdict) (wait time.Duration,
	err error) {
	before, after := o.conversation.Status, conversationStatus(o, v)
	if equality.Semantic.DeepEqual(before, after) {
		return 0, nil
	}
	if wait := worthWriting(before, after, v, o.now, r.visible()); wait > 0 {
		return wait, nil
	}
	written := *o.conversation // the rest is the cache's, and stays as it is
	conversation := &written
	conversation.Status = after
	if err := r.client.Status().Update(ctx, conversation); err != nil {
		// A conflict means that the cache was behind; its next event brings us back.
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return 0, nil
		}
		return 0, fmt.Errorf("write the status of Conversation: %w", err)
	}
	r.overwritten.add(o.conversation, conversation)
	r.starts.wrote(conversation)
	r.announce(conversation, before, after)
	measure(o.conversation, before, after, o.now)
	if endsNow(before, v) && o.analytics {
		measureUse(after.Result)
	}
	return 0, nil
}
