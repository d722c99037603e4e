package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// A measurement fails if no object becomes ready during this time.
const arrivalTimeout = 2 * time.Minute

const (
	conversations  = "Conversations"
	barePods       = "bare pods"
	sessionPods    = "session pods"
	minimalObjects = "minimal objects"
)

// subject is a kind of object to measure: Conversations or a baseline.
type subject struct {
	name   string
	create func(ctx context.Context, name string) error
	follow followFunc
	// arrived reports whether an event shows an object in its final state. It also returns the
	// object's name.
	arrived func(watch.Event) (name string, is bool)
}

func (b *bed) conversations() subject {
	spec := v1alpha1.ConversationSpec{
		UserSettingsName: userName, Repository: wanted.Repository, GitProvider: (*v1alpha1.GitProvider)(wanted.GitProvider),
		SelectedBranch: wanted.SelectedBranch, InitialUserMsg: wanted.InitialUserMsg,
	}
	return subject{
		name: conversations,
		create: func(ctx context.Context, name string) error {
			return b.user.Create(ctx, &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace,
				Name: name}, Spec: *spec.DeepCopy()})
		},
		follow: func(ctx context.Context, from string) (watch.Interface, error) {
			return b.user.Watch(ctx, &v1alpha1.ConversationList{}, client.InNamespace(benchNamespace),
				&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: from}})
		},
		arrived: func(event watch.Event) (string, bool) {
			c, ok := event.Object.(*v1alpha1.Conversation)
			if !ok {
				return "", false
			}
			return c.Name, c.Status.State == v1alpha1.StateRunning
		},
	}
}

// minimalPod returns a pod with one container and without an owner.
func minimalPod(name, app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "parley:latest"}},
		},
	}
}

func (b *bed) barePods() subject {
	pods := b.userPods.CoreV1().Pods(benchNamespace)
	return b.podsThat(barePods, "bare", func(ctx context.Context, name, app string) error {
		_, err := pods.Create(ctx, minimalPod(name, app), metav1.CreateOptions{})
		return err
	})
}

// podsThat returns a subject that creates pods with the given function. The label "app" of each pod
// has the given value.
func (b *bed) podsThat(name, app string, create func(ctx context.Context, name, app string) error) subject {
	return subject{
		name:   name,
		create: func(ctx context.Context, name string) error { return create(ctx, name, app) },
		follow: func(ctx context.Context, from string) (watch.Interface, error) {
			return b.userPods.CoreV1().Pods(benchNamespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + app,
				ResourceVersion: from})
		},
		arrived: func(event watch.Event) (string, bool) {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || event.Type == watch.Deleted {
				return "", false
			}
			return pod.Name, isReady(pod)
		},
	}
}

// arrivals records when each object of a subject reached its final state.
type arrivals struct {
	mu   sync.Mutex
	at   map[string]time.Time
	last time.Time
	// changed is closed and replaced when an object reaches its final state.
	changed chan struct{}
}

func watchArrivals(ctx context.Context, s subject) (*arrivals, error) {
	a := &arrivals{at: map[string]time.Time{}, last: time.Now(), changed: make(chan struct{})}
	return a, keepWatching(ctx, s.follow, func(event watch.Event) {
		if name, is := s.arrived(event); is {
			a.take(name)
		}
	})
}

// followFunc watches the changes of objects after a resource version. With an empty version, the
// watch begins with the existing objects.
type followFunc func(ctx context.Context, from string) (watch.Interface, error)

// keepWatching watches until the context ends. The API server closes a watch that falls behind, as
// happens in every burst. keepWatching then resumes at the last resource version, like an informer.
func keepWatching(ctx context.Context, follow followFunc, see func(watch.Event)) error {
	events, err := follow(ctx, "")
	if err != nil {
		return err
	}
	go func() {
		for from := ""; ; {
			for event := range events.ResultChan() {
				object, isObject := event.Object.(metav1.Object)
				if !isObject { // an error: the resource version is too old
					from = ""
					break
				}
				from = object.GetResourceVersion()
				see(event)
			}
			events.Stop()
			if ctx.Err() != nil {
				return
			}
			if events, err = follow(ctx, from); err != nil {
				say("watch: %v", err)
				return
			}
		}
	}()
	return nil
}

func (a *arrivals) take(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.at[name]; known {
		return
	}
	a.last = time.Now()
	a.at[name] = a.last
	close(a.changed)
	a.changed = make(chan struct{})
}

// await waits until the arrivals satisfy a condition. It fails if no object arrives within
// arrivalTimeout.
func (a *arrivals) await(ctx context.Context, holds func(at map[string]time.Time) bool) error {
	for {
		a.mu.Lock()
		done, changed, count := holds(a.at), a.changed, len(a.at)
		a.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-time.After(arrivalTimeout):
			return fmt.Errorf("no progress after %d objects", count)
		}
	}
}

func (a *arrivals) awaitCount(ctx context.Context, count int) error {
	return a.await(ctx, func(at map[string]time.Time) bool { return len(at) >= count })
}

func (a *arrivals) awaitOne(ctx context.Context, name string) (at time.Time, err error) {
	err = a.await(ctx, func(all map[string]time.Time) bool {
		var is bool
		at, is = all[name]
		return is
	})
	return at, err
}

func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.at)
}

func (a *arrivals) latest() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}
