package main

import (
	"context"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/archive"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// restoreTimeout bounds how long a session that has lost its workspace waits for its journal.
	restoreTimeout = 30 * time.Second
	// leaveTimeout is how long the end of a session waits until the archive has everything. It is within the time that a pod has to stop.
	leaveTimeout = 20 * time.Second
	// maxDiffs bounds the files before and now that are left, all together.
	maxDiffs = 5 << 20
)

// restore the journal of a session whose workspace is gone. A first attempt has none.
func (s *run) restore(ctx context.Context, kept *archive.Archive, file string) {
	if kept == nil || s.env.attempt < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	if err := kept.Restore(ctx, file); err != nil {
		s.log.Error("the session begins without its journal", "error", err)
		s.lost = "What was said before could not be had from the archive."
	}
}

// keep the journal in the archive until the session ends.
func (s *run) keep(kept *archive.Archive, events *journal.Journal) {
	if kept == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	keeper := kept.Keep(events)
	var running sync.WaitGroup
	running.Go(func() { keeper.Run(ctx) })
	s.set(func() { s.keeper = keeper })
	s.stopKeeping = func() { cancel(); running.Wait() }
}

// leave hands over all that is to outlive the session.
func (s *run) leave() {
	if s.keeper == nil {
		return
	}
	s.stopKeeping()
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := s.keeper.Finish(ctx, s.ending(ctx)); err != nil {
		s.log.Error("the archive does not have everything that the session leaves", "error", err)
	}
}

// ending is what changed, and what it cost.
func (s *run) ending(ctx context.Context) *session.Ending {
	ending := &session.Ending{Changes: []session.FileChange{}}
	if s.model != nil {
		used := s.model.Usage().Session
		ending.Calls, ending.InputTokens, ending.OutputTokens, ending.Cost = used.Calls, used.Input+used.CacheRead+used.CacheWrite, used.Output, used.Cost.String()
	}
	if s.files == nil {
		return ending // the workspace was never prepared
	}
	changes, err := workspace.Compare(ctx, s.files.Dir, s.base)
	if err != nil {
		return ending
	}
	defer changes.Close()
	ending.Repository, ending.Patch = true, changes.Patch(session.MaxPatch, s.store.Mask)
	room := maxDiffs
	for _, change := range changes.Files {
		kept := session.FileChange{Status: string(change.Kind), Path: s.store.Mask(change.Path)}
		if before, now, err := changes.Contents(change.Path); err == nil && len(before)+len(now) <= room {
			kept.Diff = &session.Diff{Modified: s.store.Mask(now), Original: s.store.Mask(before)}
			room -= len(before) + len(now)
		}
		ending.Changes = append(ending.Changes, kept)
	}
	return ending
}
