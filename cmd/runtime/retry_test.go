package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/cmd/runtime/snapshot"
)

// snapshotTries counts the snapshots of a session in a bubble of synctest.
type snapshotTries struct {
	*testing.T
	events *journal.Journal

	mu      sync.Mutex // a sleep orders the test's reads, but the race detector does not know that
	tries   int
	failure error
	notices []string
}

func newSnapshotTries(t *testing.T, states ...session.State) *snapshotTries {
	t.Helper()
	events, err := journal.Open(filepath.Join(t.TempDir(), "events.jsonl"), func(text string) string { return text })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = events.Close() })
	s := &snapshotTries{T: t, events: events}
	for _, state := range states {
		s.record(state)
	}
	save := func(context.Context, snapshot.Contents) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tries++
		return s.failure
	}
	notice := func(text string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notices = append(s.notices, text)
	}
	k := newSnapshots(&run{journal: events, log: slog.New(slog.DiscardHandler)}, save, notice)
	go k.afterTurns(t.Context(), t.Context())
	return s
}

func (s *snapshotTries) record(state session.State) {
	s.Helper()
	if _, err := s.events.Append(session.StateChange(state, "")); err != nil {
		s.Fatal(err)
	}
	synctest.Wait()
}

func (s *snapshotTries) setFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

func (s *snapshotTries) expect(when string, want int) {
	s.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tries != want {
		s.Errorf("%s: %d snapshots, want %d", when, s.tries, want)
	}
}

// The archive is unavailable at the end of a turn, so the snapshot fails. The user may send no
// further message, so the runtime must try again even if no other turn follows.
func TestAFailedSnapshotIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSnapshotTries(t)
		s.setFailure(errors.New("the archive is away"))
		s.record(session.StateRunning)
		time.Sleep(time.Hour)
		s.expect("during the first turn", 0)
		s.record(session.StateAwaiting)
		s.expect("after the turn", 1)
		time.Sleep(firstRetry + time.Second) // in the fake time of synctest, as below
		s.expect("after a minute", 2)
		time.Sleep(time.Hour)
		s.expect("after an hour", 9) // after 2, 4, 8, 10, 10, 10 and 10 minutes
		s.record(session.StateRunning)
		time.Sleep(time.Hour)
		s.expect("during a turn", 9)
		s.setFailure(nil)
		s.record(session.StateAwaiting)
		s.expect("after the next turn", 10)
		time.Sleep(time.Hour)
		s.expect("after success", 10)
		s.setFailure(snapshot.ErrTooLarge)
		s.record(session.StateAwaiting)
		time.Sleep(time.Hour)
		s.expect("after work that is too large", 11)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.notices) != 3 || !strings.Contains(s.notices[1], "in the archive works again") {
			t.Errorf("the notices are %q", s.notices)
		}
	})
}

// At its start, a session has the files that it restored. A message that woke the session begins a
// turn, so saving the files before this turn would only delay the turn.
func TestTheFirstSnapshotWaitsForATurn(t *testing.T) {
	earlier := []session.State{session.StateRunning, session.StateAwaiting, session.StateLoading, session.StateAwaiting}
	for name, turn := range map[string]bool{"a turn begins": true, "no turn begins": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSnapshotTries(t, earlier...)
				s.expect("at the start", 0)
				if !turn {
					time.Sleep(wakeDelay + time.Second)
					s.expect("without a turn", 1)
					return
				}
				s.record(session.StateRunning)
				time.Sleep(time.Hour)
				s.expect("during the turn", 0)
				s.record(session.StateAwaiting)
				s.expect("after the turn", 1)
			})
		})
	}
}
