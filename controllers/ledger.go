package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// ledger knows which sessions of each user have a place, where their class bounds how many, and which wait for one. It is kept in
// memory: who has a pod has a place, so that another manager finds the same.
type ledger struct {
	fill sync.Once
	err  error

	mu    sync.Mutex
	users map[types.NamespacedName]*account
	// names are whose each session is that has a place or waits for one.
	names map[types.NamespacedName]types.NamespacedName
	// free tells of those whose turn it is.
	free chan event.GenericEvent
}

// account of one user.
type account struct {
	running map[types.NamespacedName]bool
	waiting []waiter
	// limit that the class had when somebody last came.
	limit int
}

// waiter is a session that waits, in the order in which waiting began. That is recorded in whole seconds; the name decides
// between those that began in the same one.
type waiter struct {
	since int64
	name  types.NamespacedName
}

func (w waiter) compare(other waiter) int {
	return cmp.Or(cmp.Compare(w.since, other.since), cmp.Compare(w.name.Name, other.name.Name))
}

func newLedger() *ledger {
	return &ledger{users: map[types.NamespacedName]*account{}, names: map[types.NamespacedName]types.NamespacedName{}, free: make(chan event.GenericEvent, 1024)}
}

// ready fills the ledger from the cache, before the first decision.
func (l *ledger) ready(ctx context.Context, c client.Reader) error {
	l.fill.Do(func() {
		var pods corev1.PodList
		if l.err = c.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.HasLabels{v1alpha1.LabelConversation}); l.err != nil {
			l.err = fmt.Errorf("list the sessions' pods: %w", l.err)
			return
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if exit := exited(pod); exit == nil || exit.ExitCode != 0 {
				user := userOf(pod.Namespace, pod.Labels[v1alpha1.LabelUserSettings])
				name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Labels[v1alpha1.LabelConversation]}
				l.of(user).running[name], l.names[name] = true, user
			}
		}
	})
	return l.err
}

func userOf(namespace, settings string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: settings}
}

func (l *ledger) of(user types.NamespacedName) *account {
	a := l.users[user]
	if a == nil {
		a = &account{running: map[types.NamespacedName]bool{}}
		l.users[user] = a
	}
	return a
}

// enter gives a session a place, if it has one already or it is its turn. Otherwise it waits, and is told when it is.
func (l *ledger) enter(c *v1alpha1.Conversation, limit *int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	user, name := userOf(c.Namespace, c.Spec.UserSettingsName), client.ObjectKeyFromObject(c)
	a := l.of(user)
	l.names[name] = user
	if limit == nil || a.running[name] {
		a.running[name] = true
		a.drop(name)
		return true
	}
	a.limit = int(*limit)
	self := waiter{name: name, since: c.CreationTimestamp.Unix()}
	if s := c.Status; s.StartTime != nil && s.StopTime == nil {
		self.since = s.StartTime.Unix()
	}
	at, found := slices.BinarySearchFunc(a.waiting, self, waiter.compare)
	if !found {
		a.drop(name)
		at, _ = slices.BinarySearchFunc(a.waiting, self, waiter.compare)
		a.waiting = slices.Insert(a.waiting, at, self)
	}
	if len(a.running)+at >= a.limit {
		return false
	}
	a.waiting = slices.Delete(a.waiting, at, at+1)
	a.running[name] = true
	return true
}

func (a *account) drop(name types.NamespacedName) {
	a.waiting = slices.DeleteFunc(a.waiting, func(w waiter) bool { return w.name == name })
}

// forget a Conversation that is gone, of whomever it was.
func (l *ledger) forget(name types.NamespacedName) {
	l.mu.Lock()
	user, known := l.names[name]
	l.mu.Unlock()
	if known {
		l.leave(user, name)
	}
}

// leave gives a place back, and tells those whose turn it is now.
func (l *ledger) leave(user, name types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.names[name]; !known {
		return
	}
	a := l.of(user)
	delete(a.running, name)
	delete(l.names, name)
	a.drop(name)
	if len(a.running) == 0 && len(a.waiting) == 0 {
		delete(l.users, user)
	}
	// Several may have left before one of those who are told comes in.
	for _, next := range a.waiting[:max(0, min(len(a.waiting), a.limit-len(a.running)))] {
		object := &v1alpha1.Conversation{}
		object.Namespace, object.Name = next.name.Namespace, next.name.Name
		select {
		case l.free <- event.GenericEvent{Object: object}:
		default: // nobody listens fast enough, and nobody may be held up
			go func() { l.free <- event.GenericEvent{Object: object} }()
		}
	}
}
