package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/cmd/runtime/snapshot"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// snapshotTimeout bounds each snapshot, except the last snapshot after a stop signal.
	snapshotTimeout = 5 * time.Minute
	// firstRetry and lastRetry are the shortest and the longest delay before a failed snapshot is
	// retried.
	firstRetry = time.Minute
	lastRetry  = 10 * time.Minute
	// wakeDelay is how long the first snapshot waits for a turn to begin. A message that woke the
	// session begins a turn immediately, and the snapshot follows at the end of that turn.
	wakeDelay = 2 * time.Second
)

// snapshots saves the work of a session whose workspace is scratch space. It sends snapshots to the
// archive after each turn and at the end of the session.
type snapshots struct {
	run    *run
	begin  int // number of events in the journal before the first turn of this process
	save   func(ctx context.Context, contents snapshot.Contents) error
	notice func(text string)
	// stop ends the goroutine that takes a snapshot after each turn. It waits for the current
	// snapshot, and aborts this snapshot when ctx ends.
	stop func(ctx context.Context)
	// refused is set if the archive accepts no more snapshots of this attempt.
	refused bool
	// saved is the number of events in the journal when the last successful snapshot began.
	saved atomic.Int64
	told  string // text of the last notice about a failure
}

func (s *run) snapshotKey() (*snapshot.Key, error) {
	text := s.store.Key(session.SnapshotKeyFile)
	if text == "" {
		return nil, errNoKey
	}
	return snapshot.NewKey(text, s.doc.UID)
}

func (s *run) snapshotSource(work *workspace.Workspace, base string) snapshot.Source {
	source := snapshot.Source{Workspace: s.env.workspace, Home: s.env.home, Base: base}
	if s.doc.Repository != nil {
		source.Clone = work.Dir
	}
	return source
}

// keepSnapshots takes snapshots until the session ends, if the session is on scratch space. The
// function notice tells the user about failures.
func (s *run) keepSnapshots(records *workspace.Records, work *workspace.Workspace, notice func(text string)) {
	if !s.doc.Scratch || s.archive == nil {
		return
	}
	key, err := s.snapshotKey()
	if err != nil {
		notice("The files of this session are lost when it stops: " + err.Error() + ".")
		return
	}
	source := s.snapshotSource(work, s.files.Base)
	kept := newSnapshots(s, snapshot.NewKeeper(s.archive, key, source, records.File(snapshotFile)).Take, notice)
	running, stop := context.WithCancel(context.Background())
	snapshotCtx, abort := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { kept.afterTurns(running, snapshotCtx) })
	kept.stop = func(ctx context.Context) {
		stop()
		defer context.AfterFunc(ctx, abort)()
		done.Wait()
	}
	s.set(func() { s.snapshots = kept })
}

func newSnapshots(s *run, save func(context.Context, snapshot.Contents) error, notice func(string)) *snapshots {
	return &snapshots{run: s, begin: s.journal.Len(), save: save, notice: notice}
}

// afterTurns takes a snapshot after each turn until ctx ends, and retries failed snapshots. If no
// turn begins, it takes the first snapshot after wakeDelay. Turns that end during a snapshot share
// the next snapshot. When snapshotCtx ends, the current snapshot is aborted.
func (k *snapshots) afterTurns(ctx, snapshotCtx context.Context) {
	var retry <-chan time.Time
	wait := firstRetry
	delayed := true
	for next := 0; !k.refused; {
		ended := false
		select {
		case <-retry:
			ended, delayed = true, false
		case <-k.run.journal.More(next):
		case <-ctx.Done():
			return
		}
		err := k.run.journal.Events(next, func(e *session.Event) bool {
			next = e.ID + 1
			switch e.StateOf() {
			case "":
			case session.StateLoading:
				ended, retry = false, nil
			case session.StateRunning, session.StateConfirmation:
				ended, retry = false, nil
				delayed = delayed && e.ID < k.begin
			default:
				ended = true
			}
			return true
		})
		if err != nil {
			k.run.log.Error("reading the journal for a snapshot failed", "error", err)
			return
		}
		if !ended {
			continue
		}
		if delayed {
			retry = time.After(wakeDelay)
			continue
		}
		bounded, cancel := context.WithTimeout(snapshotCtx, snapshotTimeout)
		k.run.keeper.Flush(bounded) // a snapshot must not be newer than the archived journal
		err = k.take(bounded)
		cancel()
		if retry = nil; ctx.Err() != nil || k.refused && err == nil {
			return
		}
		k.tell(err)
		switch {
		case err == nil:
			wait = firstRetry
		case !errors.Is(err, snapshot.ErrTooLarge) && !errors.Is(err, handover.ErrSnapshotTooLarge):
			retry = time.After(wait)
			wait = min(2*wait, lastRetry)
		}
	}
}

func (k *snapshots) take(ctx context.Context) error {
	if k.refused {
		return nil
	}
	name, err := k.run.journalName()
	if err != nil {
		return err
	}
	events := k.run.journal.Len()
	err = k.save(ctx, snapshot.Contents{Journal: name, Event: events - 1})
	switch {
	case err == nil:
		k.saved.Store(int64(events))
	case errors.Is(err, handover.ErrGone):
		k.refused = true
		return nil
	case err != nil:
		k.refused = handover.Final(err)
		k.run.log.Error("saving the workspace in the archive failed", "error", err)
	}
	return err
}

// current() reports whether the archive has the files as they were after the last turn.
func (k *snapshots) current() bool {
	if k == nil {
		return false
	}
	current := true
	err := k.run.journal.Events(int(k.saved.Load()), func(e *session.Event) bool {
		current = e.StateOf() == ""
		return current
	})
	return err == nil && current
}

// tell tells the user that files cannot be saved, and later that they are saved again. It does not
// repeat the same notice.
func (k *snapshots) tell(err error) {
	if err == nil {
		if k.told != "" {
			k.notice("Saving the files of this session in the archive works again.")
		}
		k.told = ""
		return
	}
	text := "The files of this session could not be saved in the archive: " + err.Error() +
		". If the session stops now, changes since the last snapshot are lost."
	if text != k.told {
		k.told = text
		k.notice(text)
	}
}

// finish takes the last snapshot in the background. wait() waits for it.
func (k *snapshots) finish(ctx context.Context) (wait func()) {
	if k == nil {
		return func() {}
	}
	var running sync.WaitGroup
	running.Go(func() {
		k.stop(ctx)
		_ = k.take(ctx) // take() logs its error
	})
	return running.Wait
}

// journalName returns the journal's name, or an empty string if the journal has no events.
func (s *run) journalName() (string, error) {
	lines, err := s.journal.Lines(0, 1)
	if err != nil || len(lines) == 0 {
		return "", err
	}
	return session.JournalName(lines[0]), nil
}
