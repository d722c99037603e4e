package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// restoreTimeout bounds the wait for the archived journal when a second or later attempt
	// starts.
	restoreTimeout = 30 * time.Second
	// leaveTimeout bounds the wait for the archive at the end of a session.
	leaveTimeout = 20 * time.Second
	// stopTimeout bounds the wait for the archive after a stop signal. It counts from the signal.
	// It is 2 seconds shorter than the pod's grace period of 30 seconds.
	stopTimeout = 28 * time.Second
	// maxDiffs bounds the total size, in bytes, of the file contents in a session.Ending. maxPaths
	// bounds the total size of its file names.
	maxDiffs = 5 << 20
	maxPaths = 1 << 20
)

const notCompared = "The diff is omitted: computing it failed or took too long.\n"

// openJournal opens the journal. If the workspace has no journal of the earlier attempts,
// openJournal downloads it. If the workspace has one, openJournal appends the archived events that
// it lacks.
func (s *run) openJournal(ctx context.Context, kept *handover.Archive, records *workspace.Records) (*journal.Journal,
	error) {
	path := records.File(journalFile)
	info, err := os.Stat(path)
	if s.env.attempt < 2 || err == nil && info.Size() > 0 {
		s.restore(ctx, kept, path)
		return journal.Open(path, s.store.Mask)
	}
	downloaded := records.File(downloadedJournal)
	if err := os.RemoveAll(downloaded); err != nil {
		return nil, fmt.Errorf("remove an incomplete journal: %w", err)
	}
	if s.findSnapshot != nil {
		_, _ = s.findSnapshot() // it claims the archive, so no earlier attempt can append to the journal
	}
	s.restore(ctx, kept, downloaded)
	// If the journal has its name, but not all files are restored, restoreFile must exist.
	if err := s.recording.Wait(); err != nil {
		return nil, err
	}
	return journal.OpenDownloaded(downloaded, path, s.store.Mask)
}

func (s *run) openArchive() *handover.Archive {
	kept := handover.New(s.doc.ArchiveURL, s.doc.ArchiveCA, s.doc.UID, s.archiveTokens(), s.env.attempt, s.log)
	s.set(func() { s.archive = kept })
	return kept
}

func (s *run) archiveTokens() string {
	return strings.TrimSpace(s.store.Key(session.ArchiveTokenFile) + " " + s.store.Key(session.AttemptTokenFile))
}

// restore restores the journal from the archive if the workspace has no journal or an older
// journal.
func (s *run) restore(ctx context.Context, kept *handover.Archive, file string) {
	switch {
	case s.env.attempt < 2:
		return
	case kept == nil:
		if s.unrestored && s.env.ran {
			s.lost = "Earlier messages are lost: " + errNoArchive.Error() + "."
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	if s.abandonRequests != nil {
		defer context.AfterFunc(ctx, s.abandonRequests)()
	}
	if err := kept.Restore(ctx, file, s.requestedJournal); err != nil {
		s.log.Error("the session starts without its journal", "error", err)
		s.lost = "Earlier messages could not be restored from the archive."
	}
}

// keep uploads the journal and the outcomes of turns to the archive until the session ends.
func (s *run) keep(kept *handover.Archive, events *journal.Journal) {
	if kept == nil {
		return
	}
	keeper := kept.Keep(events)
	outcome := &driver.Outcome{Journal: events, NoModel: s.noModel}
	turns := kept.ReportTurns(events, outcome.Turn)
	s.set(func() { s.keeper, s.turns = keeper, turns })
	stopKeeper := inBackground(context.Background(), keeper.Run)
	stopTurns := inBackground(context.Background(), turns.Run)
	s.stopKeeping = func() { stopTurns(); stopKeeper() }
}

// leave sends the session's last data to the archive: unsent events, the ending, the outcome of the
// last turn, costs and a snapshot.
func (s *run) leave() {
	if s.keeper == nil {
		return
	}
	s.stopKeeping()
	deadline, stoppedAt := time.Now().Add(leaveTimeout), get(s, &s.stoppedAt)
	if !stoppedAt.IsZero() && stoppedAt.Add(stopTimeout).Before(deadline) {
		deadline = stoppedAt.Add(stopTimeout)
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	saving, giveUp := ctx, cancel
	if stoppedAt.IsZero() { // the session ended by itself, so the snapshot may take longer
		saving, giveUp = context.WithTimeout(context.Background(), snapshotTimeout)
	}
	defer giveUp()
	defer s.snapshots.finish(saving)()
	var reporting sync.WaitGroup
	defer reporting.Wait()
	reporting.Go(func() { s.reportLastCosts(ctx) })
	reporting.Go(func() {
		if err := s.turns.Finish(ctx); err != nil && !errors.Is(err, handover.ErrGone) {
			s.log.Error("reporting the outcome of the last turn failed", "error", err)
		}
	})
	switch err := s.keeper.Finish(ctx, s.ending); {
	case errors.Is(err, handover.ErrGone):
		s.log.Info("the conversation is deleted, so the archive keeps nothing of this session")
	case err != nil:
		s.log.Error("the archived data of the session is incomplete", "error", err)
		if !handover.Final(err) { // the archive cannot be reached
			giveUp()
		}
	}
}

// ending returns the session's changes and cost. To find the changes, it compares the repository
// with the session's first commit. The comparison cannot be cancelled, so the function waits for
// at most two thirds of the remaining time. The last third is for the upload.
func (s *run) ending(ctx context.Context) *session.Ending {
	ending := &session.Ending{Changes: []session.FileChange{}}
	unrestored := s.unrestored || s.files == nil
	if s.files != nil { // otherwise the workspace was never prepared
		deadline, _ := ctx.Deadline()
		ctx, cancel := context.WithTimeout(ctx, 2*time.Until(deadline)/3)
		defer cancel()
		found := make(chan *session.Ending, 1)
		go func() { found <- s.changes(ctx) }()
		select {
		case ending = <-found:
		case <-ctx.Done():
			ending.Repository, ending.Patch, ending.Unrestored = true, notCompared, true
		}
	}
	ending.Unrestored = ending.Unrestored || unrestored
	used := s.usage()
	ending.Calls, ending.InputTokens, ending.OutputTokens, ending.Cost = used.Calls, used.InputTokens, used.OutputTokens,
		used.Cost
	return ending
}

func (s *run) changes(ctx context.Context) *session.Ending {
	ending := &session.Ending{Changes: []session.FileChange{}}
	changes, err := workspace.Compare(ctx, s.files.Dir, s.files.Base, func() {})
	switch {
	case errors.Is(err, workspace.ErrNoRepository) && s.doc.Repository == nil:
		return ending
	case err != nil: // for example, the clone uses an unsupported git feature
		ending.Repository, ending.Patch, ending.Unrestored = true, notCompared, true
		return ending
	}
	defer changes.Close()
	ending.Repository, ending.Patch = true, changes.Patch(session.MaxPatch, s.store.Mask)
	diffs, paths := maxDiffs, maxPaths
	for _, change := range changes.Files[:min(len(changes.Files), session.MaxChanges)] {
		kept := session.FileChange{Status: string(change.Kind), Path: s.store.Mask(change.Path)}
		if paths -= len(kept.Path); paths < 0 {
			break
		}
		if before, now, err := changes.Contents(change.Path); err == nil && len(before)+len(now) <= diffs {
			kept.Diff = &session.Diff{Modified: s.store.Mask(now), Original: s.store.Mask(before)}
			diffs -= len(before) + len(now)
		}
		ending.Changes = append(ending.Changes, kept)
	}
	return ending
}
