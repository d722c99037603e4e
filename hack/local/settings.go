package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/release/manifests"
)

const (
	settingsNamespace = "default"
	settingsName      = "default"
	retryInterval     = 200 * time.Millisecond
)

var settingsKind = schema.GroupVersionKind{Group: "parley.dev", Version: "v1alpha1", Kind: "UserSettings"}

func newSettings() *unstructured.Unstructured {
	settings := &unstructured.Unstructured{}
	settings.SetGroupVersionKind(settingsKind)
	settings.SetNamespace(settingsNamespace)
	settings.SetName(settingsName)
	return settings
}

// createSettings makes the first user's settings if there are none, and waits
// for their session key. It does not wait for Ready: settings from an earlier
// run may refer to a Secret that is gone, and that is the user's business.
func (l *local) createSettings(ctx context.Context) error {
	err := manifests.Persist(ctx, func(ctx context.Context) error {
		settings := newSettings()
		settings.Object["spec"] = map[string]any{}
		return ignoreAlreadyExists(l.client.Create(ctx, settings, client.FieldOwner(parley.FieldManager)))
	})
	if err != nil {
		return fmt.Errorf("create UserSettings %s: %w", settingsName, err)
	}
	return cluster.Retry(ctx, retryInterval, func(ctx context.Context) error {
		settings := newSettings()
		if err := l.client.Get(ctx, client.ObjectKeyFromObject(settings), settings); err != nil {
			return err
		}
		return l.storeSessionKey(ctx, settings)
	})
}

func ignoreAlreadyExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// storeSessionKey writes the key that the settings' status speaks of to its file.
func (l *local) storeSessionKey(ctx context.Context, settings *unstructured.Unstructured) error {
	hash, _, _ := unstructured.NestedString(settings.Object, "status", "sessionKeyHash")
	if hash == "" {
		return fmt.Errorf("UserSettings %s has no session key yet", settings.GetName())
	}
	name, _, _ := unstructured.NestedString(settings.Object, "status", "sessionKeyRef", "name")
	entry, _, _ := unstructured.NestedString(settings.Object, "status", "sessionKeyRef", "key")
	name, entry = cmp.Or(name, settings.GetName()+"-session-key"), cmp.Or(entry, "key")

	var secret corev1.Secret
	if err := l.client.Get(ctx, client.ObjectKey{Namespace: settings.GetNamespace(), Name: name}, &secret); err != nil {
		return err
	}
	key := string(secret.Data[entry])
	if key == "" {
		return fmt.Errorf("the Secret %s has no %s", name, entry)
	}
	if err := cluster.WritePrivate(l.sessionKeyFile(), []byte(key)); err != nil {
		return err
	}
	l.sessionKey = key
	return nil
}

// followSessionKey keeps the file up to date. Settings whose key was rotated
// have a new hash, so that they alone need to be watched.
func (l *local) followSessionKey(ctx context.Context) {
	tick := time.NewTicker(time.Second) // between a watch that ended and the next
	defer tick.Stop()
	for {
		l.watchSettings(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// watchSettings follows the settings until the API server ends the watch. The
// first event is the current state, so nothing is missed in between.
func (l *local) watchSettings(ctx context.Context) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(settingsKind.GroupVersion().WithKind(settingsKind.Kind + "List"))
	watch, err := l.client.Watch(ctx, list, client.InNamespace(settingsNamespace),
		client.MatchingFields{"metadata.name": settingsName})
	if err != nil {
		return
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		settings, ok := event.Object.(*unstructured.Unstructured)
		if !ok || settings.GetKind() != settingsKind.Kind {
			continue
		}
		before := l.sessionKey
		// An error is a key in the making; the event of its making follows.
		if err := l.storeSessionKey(ctx, settings); err == nil && l.sessionKey != before {
			l.say("the session key has changed: see %s", l.sessionKeyFile())
		}
	}
}
