package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	return cluster.Retry(ctx, retryInterval, func(ctx context.Context) error {
		settings := &v1alpha1.UserSettings{}
		if err := l.client.Get(ctx, settingsKey, settings); err != nil {
			return err
		}
		return l.storeSessionKey(ctx, settings)
	})
}

// storeSessionKey writes the key of the settings' status to its file.
func (l *local) storeSessionKey(ctx context.Context, settings *v1alpha1.UserSettings) error {
	if settings.Status.SessionKeyHash == "" {
		return fmt.Errorf("UserSettings %s has no session key yet", settings.Name)
	}
	name := v1alpha1.SessionKeySecretName(settings.Name)
	var secret corev1.Secret
	if err := l.client.Get(ctx, client.ObjectKey{Namespace: settings.Namespace, Name: name}, &secret); err != nil {
		return err
	}
	key := string(secret.Data[v1alpha1.SessionKeySecretKey])
	if key == "" {
		return fmt.Errorf("the Secret %s has no key", name)
	}
	if err := cluster.WritePrivate(l.sessionKeyFile(), []byte(key)); err != nil {
		return err
	}
	l.sessionKey = key
	return nil
}

// followSessionKey keeps the file up to date. A rotated key changes the hash in the settings, so
// watching the settings is enough.
func (l *local) followSessionKey(ctx context.Context) {
	tick := time.NewTicker(time.Second) // delay between two watches
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

// watchSettings follows the settings until the API server ends the watch. The first event is the
// current state, so no change between two watches is lost.
func (l *local) watchSettings(ctx context.Context) {
	watch, err := l.client.Watch(ctx, &v1alpha1.UserSettingsList{}, client.InNamespace(settingsKey.Namespace),
		client.MatchingFields{"metadata.name": settingsKey.Name})
	if err != nil {
		return
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		settings, ok := event.Object.(*v1alpha1.UserSettings)
		if !ok {
			continue
		}
		before := l.sessionKey
		// On an error the key is not complete yet; another event follows.
		if err := l.storeSessionKey(ctx, settings); err == nil && l.sessionKey != before {
			l.say("the session key has changed: see %s", l.sessionKeyFile())
		}
	}
}
