package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// effectiveSettings merges UserSettings with the UserSettings from which they inherit. It returns a
// blocker if the latter do not exist or have an inheritFrom too. The webhook refuses such a chain,
// but two concurrent requests may still create it.
func effectiveSettings(ctx context.Context, from client.Reader, settings *v1alpha1.UserSettings) (
	*v1alpha1.UserSettingsSpec, *lifecycle.Blocker, error) {
	if settings.Spec.InheritFrom == nil {
		return &settings.Spec, nil, nil
	}
	name, inherited := *settings.Spec.InheritFrom, &v1alpha1.UserSettings{}
	err := from.Get(ctx, client.ObjectKey{Namespace: settings.Namespace, Name: name}, inherited)
	switch {
	case apierrors.IsNotFound(err) || err == nil && inherited.DeletionTimestamp != nil:
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonSettingsNotFound, "spec.inheritFrom: UserSettings %s do not exist",
			name), nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the inherited UserSettings: %w", err)
	case inherited.Spec.InheritFrom != nil:
		return nil, lifecycle.NewBlocker(v1alpha1.ReasonInheritsTwice,
			"spec.inheritFrom: UserSettings %s inherit from %s: choose UserSettings without inheritFrom", name,
			*inherited.Spec.InheritFrom), nil
	}
	return settings.Spec.Inherit(&inherited.Spec), nil, nil
}

// heirs returns requests for the heirs of UserSettings: the UserSettings that inherit from them.
func heirs(ctx context.Context, c client.Reader, settings client.ObjectKey) []reconcile.Request {
	return requestsFor(ctx, c, &v1alpha1.UserSettingsList{}, settings.Namespace, v1alpha1.IndexInheritFrom, settings.Name)
}

// conversationsOfSettings returns requests for the Conversations of UserSettings and of their
// heirs. It omits Conversations that a filter refuses.
func conversationsOfSettings(ctx context.Context, c client.Reader, settings client.ObjectKey,
	filters ...func(client.Object) bool) (requests []reconcile.Request) {
	for _, user := range append(heirs(ctx, c, settings), reconcile.Request{NamespacedName: settings}) {
		requests = append(requests, requestsFor(ctx, c, &v1alpha1.ConversationList{}, user.Namespace,
			v1alpha1.IndexUserSettingsName, user.Name, filters...)...)
	}
	return requests
}

// inheritability accepts events that change whether other UserSettings can inherit from these
// UserSettings.
var inheritability = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*v1alpha1.UserSettings), e.ObjectNew.(*v1alpha1.UserSettings)
	return (before.Spec.InheritFrom == nil) != (after.Spec.InheritFrom == nil) || before.UID != after.UID ||
		after.DeletionTimestamp != nil
}}
