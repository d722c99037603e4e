package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// ledger knows which sessions of each user have a place, where their class bounds how many, and
// which wait for one. It is kept in memory: who has a pod has a place, so that another manager
// finds the same.
type ledger struct {
	mu     sync.Mutex
	filled bool
	users  map[types.NamespacedName]*account
	// names are whose each session is that has a place or waits for one.
	names map[types.NamespacedName]types.NamespacedName
	// free tells of those who got a place that they waited for.
	free chan event.GenericEvent
}

// account of one user.
type account struct {
	running map[types.NamespacedName]bool
	// refused are those who have a place, and were refused since they got it.
	refused map[types.NamespacedName]bool
	waiting []waiter
	// most is the widest limit of those who wait.
	most int32
}

// waiter is a session that waits, in the order in which waiting began. That is recorded in whole
// seconds; the name decides between those that began in the same one.
type waiter struct {
	since int64
	name  types.NamespacedName
	// limit of the session's class. Sessions of one user may be of several.
	limit int32
}

func (w waiter) compare(other waiter) int {
	return cmp.Or(cmp.Compare(w.since, other.since), cmp.Compare(w.name.Name, other.name.Name))
}

func newLedger() *ledger {
	return &ledger{users: map[types.NamespacedName]*account{}, names: map[types.NamespacedName]types.NamespacedName{},
		free: make(chan event.GenericEvent, 1024)}
}

// ready fills the ledger from the cache, before the first decision.
func (l *ledger) ready(ctx context.Context, c client.Reader) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.filled {
		return nil
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.UnsafeDisableDeepCopy, client.HasLabels{v1alpha1.LabelConversation}); err != nil {
		return fmt.Errorf("list the sessions' pods: %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; takesPlace(pod) {
			l.seat(userOf(pod.Namespace, pod.Labels[v1alpha1.LabelUserSettings]), types.NamespacedName{Namespace: pod.Namespace,
				Name: pod.Labels[v1alpha1.LabelConversation]})
		}
	}
	l.filled = true
	return nil
}

// takesPlace: something of the session runs or may run. A pod that is kept for its logs takes none.
func takesPlace(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	exit := exited(pod)
	return exit == nil || exit.ExitCode != 0
}

func userOf(namespace, settings string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: settings}
}

func (l *ledger) of(user types.NamespacedName) *account {
	a := l.users[user]
	if a == nil {
		a = &account{running: map[types.NamespacedName]bool{}, refused: map[types.NamespacedName]bool{}}
		l.users[user] = a
	}
	return a
}

// seat gives a session a place, whatever the limit.
func (l *ledger) seat(user, name types.NamespacedName) {
	a := l.claim(user, name)
	a.drop(name)
	a.running[name] = true
}

// claim notes whose a session is. One that was deleted and made again for somebody else is no
// longer the first user's.
func (l *ledger) claim(user, name types.NamespacedName) *account {
	if before, known := l.names[name]; known && before != user {
		l.remove(name)
	}
	l.names[name] = user
	return l.of(user)
}

// hold keeps a place for a session that has a pod, whoever gave it one.
func (l *ledger) hold(c *v1alpha1.Conversation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	user, name := userOf(c.Namespace, c.Spec.UserSettingsName), client.ObjectKeyFromObject(c)
	l.seat(user, name)
	delete(l.of(user).refused, name)
}

// mayTryOnceMore: a session that has a place is refused, for the first time since it got it. If it
// gave the place away at once, each of those who wait would make what goes with its pod, and be
// refused too where a quota is full. If it kept it, one that asks for too much would hold up all.
func (l *ledger) mayTryOnceMore(name types.NamespacedName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.users[l.names[name]]
	if a == nil || !a.running[name] || a.refused[name] {
		return false
	}
	a.refused[name] = true
	return true
}

// has says whether a session has a place.
func (l *ledger) has(name types.NamespacedName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.users[l.names[name]]
	return a != nil && a.running[name]
}

// enter gives a session a place, if it has one already or it is its turn. Otherwise it waits, and
// is told when it has one.
func (l *ledger) enter(c *v1alpha1.Conversation, limit *int32, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	user, name := userOf(c.Namespace, c.Spec.UserSettingsName), client.ObjectKeyFromObject(c)
	a := l.claim(user, name)
	if limit == nil || a.running[name] {
		l.seat(user, name)
		return true
	}
	// All these times are by the operator's clock: when its waiting was recorded to begin or,
	// before that is, now.
	self := waiter{name: name, limit: *limit, since: now.Unix()}
	if s := c.Status; s.StartTime != nil && s.StopTime == nil {
		self.since = s.StartTime.Unix()
	}
	a.drop(name)
	at, _ := slices.BinarySearchFunc(a.waiting, self, waiter.compare)
	a.waiting, a.most = slices.Insert(a.waiting, at, self), max(a.most, self.limit)
	l.handOut(a, name)
	return a.running[name]
}

// handOut gives the places that are free to those whose turn it is, and tells all but the one who
// asks. They have their places from now on: whatever becomes of the order until they come, none is
// free that nobody knows of.
func (l *ledger) handOut(a *account, asks types.NamespacedName) {
	for i := 0; i < len(a.waiting) && len(a.running) < int(a.most); {
		next := a.waiting[i]
		if len(a.running) >= int(next.limit) {
			i++ // its class is narrower than that of one behind it
			continue
		}
		a.waiting = slices.Delete(a.waiting, i, i+1)
		a.running[next.name] = true
		if next.name != asks {
			l.call(next.name)
		}
	}
	if len(a.waiting) == 0 {
		a.most = 0
	}
}

func (l *ledger) call(name types.NamespacedName) {
	object := &v1alpha1.Conversation{}
	object.Namespace, object.Name = name.Namespace, name.Name
	select {
	case l.free <- event.GenericEvent{Object: object}:
	default: // nobody listens fast enough, and nobody may be held up
		go func() { l.free <- event.GenericEvent{Object: object} }()
	}
}

func (a *account) drop(name types.NamespacedName) {
	a.waiting = slices.DeleteFunc(a.waiting, func(w waiter) bool { return w.name == name })
}

// leave gives the place of a session back, or its place among those who wait.
func (l *ledger) leave(name types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(name)
}

func (l *ledger) remove(name types.NamespacedName) {
	user, known := l.names[name]
	if !known {
		return
	}
	delete(l.names, name)
	a := l.of(user)
	if a.running[name] {
		delete(a.running, name)
		delete(a.refused, name)
	} else {
		a.drop(name)
	}
	l.handOut(a, types.NamespacedName{})
	if len(a.running) == 0 && len(a.waiting) == 0 {
		delete(l.users, user)
	}
}
