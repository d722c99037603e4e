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

// createSettings creates the first user's settings if they are missing, and waits for their session
// key. It does not wait for Ready: settings from an earlier run may refer to a deleted Secret,
// which the user must fix.
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

// watchSettings updates the file until the API server ends the watch. A rotated key changes the
// hash in the settings. The first event is the current state, so no change between two watches is
// lost.
func (l *local) watchSettings(ctx context.Context) {
	watch, err := l.client.Watch(ctx, &v1alpha1.UserSettingsList{}, client.InNamespace(settingsKey.Namespace),
		client.MatchingFields{"metadata.name": settingsKey.Name})
	if err != nil {
		return
	}
	defer watch.Stop()
	for range watch.ResultChan() {
		before := l.sessionKey
		// If this fails, the key is not complete yet, and another event follows.
		if err := l.storeSessionKey(ctx); err == nil && l.sessionKey != before {
			l.say("the session key has changed: see %s", l.sessionKeyFile())
		}
	}
}
