package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// heldReads holds back the reads of a user's settings.
type heldReads struct {
	client.Client
	user    string
	reading atomic.Int32
	release chan struct{}
}

func (h *heldReads) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, settings := o.(*v1alpha1.UserSettings); settings && key.Name == h.user {
		h.reading.Add(1)
		<-h.release
	}
	return h.Client.Get(ctx, key, o, opts...)
}

func TestConcurrentSessionStartsOfAUserAreLimited(t *testing.T) {
	t.Parallel()
	const sessions = 3 * maxStarts
	ns := env.Namespace(t, nil)
	create(t, userSettings(ns, "ada"), userSettings(ns, "eve"))
	live := &heldReads{Client: managerClient(t), user: "ada", release: make(chan struct{})}
	p := timedProcess{conversationReconciler: newProcess(managerClient(t), live), t: t, namespace: ns}
	var running sync.WaitGroup
	returned := make(chan string, sessions)
	for n := range sessions {
		name := fmt.Sprint("ada-", n)
		create(t, makeConversation(ns, name).Obj())
		running.Go(func() {
			if _, err := p.Reconcile(t.Context(), requestFor(ns, name)); err != nil {
				t.Error(err)
			}
			returned <- name
		})
	}
	// The reconciles of sessions that must wait return at once, and write nothing. A deleted session
	// does not delay the others.
	for n := range sessions - maxStarts {
		name := <-returned
		if status := getConversation(t, ns, name).Status; status.Reason != "" {
			t.Errorf("a waiting session is %s, %s", status.State, status.Reason)
		}
		if n == 0 {
			if err := env.Client.Delete(t.Context(), makeConversation(ns, name).Obj()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := live.reading.Load(); n > maxStarts {
		t.Errorf("%d sessions start at the same time", n)
	}
	create(t, makeConversation(ns, "eve").With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "eve" }).Obj())
	p.reconcile("eve")
	if n := len(runningPods(t, ns)); n != 1 {
		t.Errorf("%d sessions run, want the session of another user", n)
	}
	close(live.release)
	running.Wait()
	for range sessions - maxStarts {
		p.reconcile((<-p.admissions).Object.GetName())
	}
	if n := len(runningPods(t, ns)); n != sessions { // the deleted session has no pod, but eve has one
		t.Errorf("%d sessions run, want %d", n, sessions)
	}
}

// failedReads fails the reads of UserSettings, and counts them.
type failedReads struct {
	client.Client
	failures atomic.Int32
	works    atomic.Bool
}

func (f *failedReads) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, settings := o.(*v1alpha1.UserSettings); settings && !f.works.Load() {
		f.failures.Add(1)
		return errors.New("the API server does not answer")
	}
	return f.Client.Get(ctx, key, o, opts...)
}

// The work queue forgets the failures of a session that waits for other starts of its user. Without a
// backoff of their own, the sessions of a user would then retry failed starts in an endless loop.
func TestFailedStartsOfAUserWithManySessionsBackOff(t *testing.T) {
	t.Parallel()
	const sessions, rounds = 2 * maxStarts, 100
	ns := env.Namespace(t, nil)
	create(t, userSettings(ns, "ada"))
	live := &failedReads{Client: managerClient(t)}
	p := timedProcess{newProcess(managerClient(t), live), t, ns, clocktesting.NewFakePassiveClock(time.Now())}
	p.clock = p.now
	for n := range sessions {
		create(t, makeConversation(ns, fmt.Sprint("c-", n)).Obj())
	}
	for range rounds {
		for n := range sessions {
			_, _ = p.Reconcile(t.Context(), requestFor(ns, fmt.Sprint("c-", n)))
		}
		p.advance(10 * time.Millisecond)
	}
	// Within a second, the delay of a session doubles at most eight times, from 5 to 640 ms.
	if n := live.failures.Load(); n > 10*sessions {
		t.Errorf("%d sessions tried to start %d times within a second", sessions, n)
	}
	live.works.Store(true)
	p.advance(lastBackoff)
	for n := range sessions {
		p.reconcile(fmt.Sprint("c-", n))
	}
	if n := len(runningPods(t, ns)); n != sessions {
		t.Errorf("%d of %d sessions run after the failures have ended", n, sessions)
	}
}
