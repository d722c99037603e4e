package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/release/manifests"
)

const retryInterval = 200 * time.Millisecond

var settingsKey = client.ObjectKey{Namespace: "default", Name: "default"}

// createSettings creates the first user's settings if they are missing, and waits for the session
// key. It does not wait for the condition Ready: existing settings may refer to a deleted Secret,
// and only the user can fix them.
func (l *local) createSettings(ctx context.Context) error {
	err := manifests.Persist(ctx, func(ctx context.Context) error {
		settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: settingsKey.Namespace,
			Name: settingsKey.Name}}
		return client.IgnoreAlreadyExists(l.client.Create(ctx, settings, client.FieldOwner(parley.FieldManager)))
	})
	if err != nil {
		return fmt.Errorf("create UserSettings %s: %w", settingsKey.Name, err)
	}
	return cluster.Retry(ctx, retryInterval, l.storeSessionKey)
}

func (l *local) storeSessionKey(ctx context.Context) error {
	key, err := parley.SessionKey(ctx, l.client, settingsKey)
	if err != nil {
		return err
	}
	if err := cluster.WritePrivate(l.sessionKeyFile(), []byte(key)); err != nil {
		return err
	}
	l.sessionKey = key
	return nil
}

// watchSettings updates the session key file until the watch ends. When the session key changes,
// its hash in the settings also changes, which causes an event. Each watch begins with an event for
// the current state, so no change is missed.
func (l *local) watchSettings(ctx context.Context) {
	watch, err := l.client.Watch(ctx, &v1alpha1.UserSettingsList{}, client.InNamespace(settingsKey.Namespace),
		client.MatchingFields{"metadata.name": settingsKey.Name})
	if err != nil {
		return
	}
	defer watch.Stop()
	for range watch.ResultChan() {
		before := l.sessionKey
		// Ignore an error: the Secret is not complete yet, and another watch event follows when it
		// is complete.
		if err := l.storeSessionKey(ctx); err == nil && l.sessionKey != before {
			l.say("the session key has changed: see %s", l.sessionKeyFile())
		}
	}
}
