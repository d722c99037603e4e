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

// The archive is unavailable at the end of a turn, so the snapshot fails. The user may send no
// further message, so the runtime must try again even if no other turn follows.
func TestAFailedSnapshotIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, err := journal.Open(filepath.Join(t.TempDir(), "events.jsonl"), func(text string) string { return text })
		if err != nil {
			t.Fatal(err)
		}
		defer events.Close()
		record := func(state session.State) {
			if _, err := events.Append(session.StateChange(state, "")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		var mu sync.Mutex // a sleep orders the test's reads, but the race detector does not know that
		failure := errors.New("the archive is away")
		tries := 0
		var notices []string
		k := &snapshots{
			run: &run{journal: events, log: slog.New(slog.DiscardHandler)},
			save: func(context.Context, snapshot.Contents) error {
				mu.Lock()
				defer mu.Unlock()
				tries++
				return failure
			},
			notice: func(text string) {
				mu.Lock()
				defer mu.Unlock()
				notices = append(notices, text)
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go k.afterTurns(ctx, ctx)
		wants := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if tries != want {
				t.Errorf("%s: %d snapshots, want %d", when, tries, want)
			}
		}
		record(session.StateAwaiting)
		wants("before the first turn", 0)
		record(session.StateRunning)
		time.Sleep(time.Hour)
		wants("during the first turn", 0)
		record(session.StateAwaiting)
		wants("after the turn", 1)
		time.Sleep(firstRetry + time.Second) // in the fake time of synctest, as below
		wants("after a minute", 2)
		time.Sleep(time.Hour)
		wants("after an hour", 9) // after 2, 4, 8, 10, 10, 10 and 10 minutes
		record(session.StateRunning)
		time.Sleep(time.Hour)
		wants("during a turn", 9)
		fails := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			failure = err
		}
		fails(nil)
		record(session.StateAwaiting)
		wants("after the next turn", 10)
		time.Sleep(time.Hour)
		wants("after success", 10)
		fails(snapshot.ErrTooLarge)
		record(session.StateAwaiting)
		time.Sleep(time.Hour)
		wants("after work that is too large", 11)
		mu.Lock()
		defer mu.Unlock()
		if len(notices) != 3 || !strings.Contains(notices[1], "in the archive works again") {
			t.Errorf("the notices are %q", notices)
		}
	})
}
