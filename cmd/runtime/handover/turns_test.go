package handover

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

type fakeOutcome struct {
	atomic.Pointer[v1alpha1.ConversationTurn]
}

func (f *fakeOutcome) turn() (*v1alpha1.ConversationTurn, error) { return f.Load(), nil }

func failedBecause(message string) *v1alpha1.ConversationTurn {
	return &v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonTurnFailed, Message: message}
}

// turn returns the message of the archived outcome, or an empty string if there is none.
func (k *testArchive) turn() string {
	k.t.Helper()
	list, _, err := k.store.Turns(k.t.Context(), "", "", 0)
	if err != nil {
		k.t.Fatal(err)
	}
	var all []string
	for _, reported := range list.Turns {
		if reported.UID != uid || reported.Conversation != "somebody/u" {
			k.t.Errorf("the archive has %+v", reported)
		}
		all = append(all, reported.Turn.Message)
	}
	return strings.Join(all, " ")
}

func (k *testArchive) awaitTurn(want string) {
	k.t.Helper()
	testenv.Await(k.t, func() error {
		if got := k.turn(); got != want {
			return fmt.Errorf("the outcome in the archive is %q, want %q", got, want)
		}
		return nil
	})
}

func running(t *testing.T, r *TurnReporter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { r.Run(ctx) })
	stop = func() { cancel(); done.Wait() }
	t.Cleanup(stop)
	return stop
}

func TestTheArchiveGetsEachChangeOfTheOutcome(t *testing.T) {
	t.Parallel()
	k, outcome := newArchive(t), &fakeOutcome{}
	j := open(t, inFile(t))
	stop := running(t, k.attempt(1).ReportTurns(j, outcome.turn))
	outcome.Store(failedBecause("no key"))
	write(t, j, "a")
	k.awaitTurn("no key")
	k.away.Store(true)
	outcome.Store(failedBecause("another"))
	write(t, j, "b")
	k.away.Store(false)
	k.awaitTurn("another") // the failed report is retried
	outcome.Store(nil)
	write(t, j, "c")
	k.awaitTurn("")
	stop()
	if position, err := k.store.Position(t.Context(), uid); err != nil || position.Next != 0 {
		t.Errorf("the reports stored events: %+v, %v", position, err)
	}
}

func TestALaterAttemptReplacesTheOutcomeOfAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	k := newLimitedArchive(t, 1) // even a full archive accepts outcomes
	finish := func(attempt int, message string, messages ...string) error {
		t.Helper()
		outcome := &fakeOutcome{}
		if message != "" {
			outcome.Store(failedBecause(message))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		return k.attempt(attempt).ReportTurns(open(t, inFile(t), messages...), outcome.turn).Finish(ctx)
	}
	for _, step := range []struct {
		attempt         int
		message, events string
		refused         bool
		want            string
	}{
		{1, "one", "a", false, "one"},
		{1, "", "", false, "one"}, // attempt 1 has no events yet, so it withdraws no outcome
		{1, "", "a", false, ""},   // attempt 1 has events, so it withdraws an outcome from before a restart
		{1, "again", "a", false, "again"},
		{2, "", "", false, ""}, // a later attempt withdraws the outcome even without its journal
		{1, "stale", "a", true, ""},
		{2, "two", "a", false, "two"},
	} {
		var events []string
		if step.events != "" {
			events = append(events, step.events)
		}
		if err := finish(step.attempt, step.message, events...); (err != nil) != step.refused {
			t.Errorf("attempt %d reports %q: %v", step.attempt, step.message, err)
		}
		if got := k.turn(); got != step.want {
			t.Errorf("after attempt %d reported %q, the archive has %q, want %q", step.attempt, step.message, got, step.want)
		}
	}
}

func TestNothingIsReportedAboutADeletedConversation(t *testing.T) {
	t.Parallel()
	k, outcome := newArchive(t), &fakeOutcome{}
	k.deleted.Store(true)
	outcome.Store(failedBecause("no key"))
	reporter := k.attempt(1).ReportTurns(open(t, inFile(t), "a"), outcome.turn)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		reporter.Run(t.Context())
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not stop")
	}
	if got := k.turn(); got != "" {
		t.Errorf("the archive has %q", got)
	}
}
