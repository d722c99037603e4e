package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/cmd/runtime/record"
	"github.com/parley-dev/parley/cmd/runtime/snapshot"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// lookupTimeout bounds the search for a snapshot. downloadTimeout bounds the snapshot's
	// download.
	lookupTimeout   = 10 * time.Second
	downloadTimeout = 3 * time.Minute
	// maxLater bounds the list of the agent's actions after a snapshot, in bytes.
	maxLater = 8 << 10
)

// Names of files in the session's records.
const (
	// restoreFile holds the state of the restoration. It is written when an attempt finds no
	// workspace, and removed when the files are restored.
	restoreFile = "restore"
	// snapshotFile describes the last snapshot. downloadFile is the downloaded snapshot.
	snapshotFile = "snapshot.json"
	downloadFile = "snapshot.tar.gz"
)

const (
	restorePending = "pending"
	restoreFailed  = "failed"
)

// mustRestore reports whether the files of earlier attempts must be restored. If an earlier
// restoration was interrupted, mustRestore clears the workspace first.
func (s *run) mustRestore(records *workspace.Records) (bool, error) {
	if text, err := record.Read(records.File(restoreFile)); err == nil {
		s.unrestored = true
		if string(text) == restoreFailed {
			return false, nil
		}
		return true, s.clearWorkspace(records)
	}
	info, err := os.Stat(records.File(journalFile))
	if s.env.attempt < 2 || err == nil && info.Size() > 0 {
		return false, nil
	}
	s.unrestored = true
	s.recording.Go(func() error { return setRestoration(records, restorePending) })
	return true, nil
}

// requestRestoration requests the data of earlier attempts while the session still prepares its
// directories. A warm pod calls it when it gets its first session: its workspace is fresh, so all
// data must be restored. It does nothing if the class has a CA bundle and the document has no
// certificate of the archive's authority: the first TLS connection must then wait for the call of
// trust().
func (s *run) requestRestoration() {
	if s.env.attempt < 2 || s.doc.ArchiveCA == "" && s.doc.CABundle != "" {
		return
	}
	kept := s.openArchive()
	if kept == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.abandonRequests = cancel
	find := inParallel(func() (session.Snapshot, error) { return findSnapshot(ctx, kept) })
	s.findSnapshot = find
	s.requestedJournal = inParallel(func() (io.ReadCloser, error) {
		_, _ = find() // it claims the archive, so no earlier attempt can append to the journal
		return kept.Journal(ctx)
	})
}

// clearWorkspace removes a partly restored workspace. It keeps the runtime's records.
func (s *run) clearWorkspace(records *workspace.Records) error {
	home, err := records.Home()
	if err != nil {
		return err
	}
	for dir, keep := range map[string]string{s.env.workspace: workspace.RecordsDir, home: ".parley"} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("clear the workspace: %w", err)
		}
		for _, entry := range entries {
			if entry.Name() == keep {
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return fmt.Errorf("clear the workspace: %w", err)
			}
		}
	}
	for _, name := range []string{snapshotFile, downloadFile} {
		if err := os.RemoveAll(records.File(name)); err != nil {
			return fmt.Errorf("clear the workspace: %w", err)
		}
	}
	return nil
}

var (
	errNothingLost = errors.New("no earlier attempt did any work")
	errNoArchive   = errors.New("this installation has no archive")
	errVolume      = errors.New("the session's volume is new, and snapshots are taken only of sessions without a volume")
	errNoKey       = errors.New("the session has no snapshot key, because it started before Parley had snapshots")
	errUnavailable = errors.New("the archive is not available")
	errDownload    = errors.New("the snapshot of these files could not be downloaded")
	errApply       = errors.New("the snapshot of these files could not be restored")
)

// restoreWorkspace restores the earlier attempts' files into a fresh workspace. If that fails, the
// attempt starts with the fresh workspace, and a notice says why.
func (s *run) restoreWorkspace(ctx context.Context, records *workspace.Records,
	work *workspace.Workspace) (*workspace.Workspace, error) {
	if !s.restoring {
		return work, nil
	}
	err := s.restoreSnapshot(ctx, records, work)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && s.noBranch != nil:
		s.log.Error("the deleted branch could not be restored", "error", err)
		return nil, s.noBranch
	case err == nil:
		// Prepare the workspace again: the restored clone may be on another branch than the fresh
		// clone, and the restored files replaced git's configuration in the home directory.
		if work, err = workspace.Prepare(ctx, s.workspaceOptions()); err != nil {
			return nil, err
		}
		fallthrough
	case errors.Is(err, errNothingLost):
		if err := s.journal.AwaitName(); err != nil {
			return nil, err
		}
		s.set(func() { s.unrestored = false })
		return work, record.Remove(records.File(restoreFile))
	}
	s.log.Error("the files of the earlier attempts are lost", "error", err)
	lost := lostFiles(err)
	if errors.Is(err, errApply) {
		if err := s.clearWorkspace(records); err != nil {
			return nil, err
		}
		if work, err = workspace.Prepare(ctx, s.workspaceOptions()); err != nil {
			return nil, err
		}
	}
	if err := driver.Restored(s.journal, lost, lost, true); err != nil {
		return nil, err
	}
	return work, setRestoration(records, restoreFailed)
}

func setRestoration(records *workspace.Records, state string) error {
	return record.Write(records.File(restoreFile), strings.NewReader(state), 0o600)
}

// lostFiles returns the notice that says why files are lost.
func lostFiles(err error) string {
	text := fmt.Sprintf("Files of the earlier attempt are lost: %s. This attempt started with a fresh workspace.", err)
	for _, none := range []error{errNoArchive, errVolume, errNoKey, handover.ErrNoSnapshot} {
		if errors.Is(err, none) {
			return text
		}
	}
	return text + " If the archive has a snapshot, the files of this attempt do not replace it. To try to restore the " +
		"snapshot, stop the session and start it again."
}

func (s *run) restoreSnapshot(ctx context.Context, records *workspace.Records, work *workspace.Workspace) error {
	switch {
	case s.archive == nil && !s.env.ran:
		return errNothingLost
	case s.archive == nil:
		return errNoArchive
	}
	downloaded, err := s.fetchSnapshot()
	if errors.Is(err, errUnavailable) || errors.Is(err, errDownload) {
		// The archive may be reachable now, and the clone no longer uses the network.
		find := func() (session.Snapshot, error) { return findSnapshot(ctx, s.archive) }
		downloaded, err = s.downloadSnapshot(ctx, records, find)
	}
	switch {
	case errors.Is(err, handover.ErrNoSnapshot) && s.lost == "" && s.neverReady():
		return errNothingLost
	case errors.Is(err, handover.ErrNoSnapshot) && !s.doc.Scratch:
		return errVolume
	case err != nil:
		return err
	}
	defer downloaded.Discard()
	// If Apply fails or is interrupted, clearWorkspace removes snapshotFile.
	s.recording.Go(func() error { return downloaded.Record(records.File(snapshotFile)) })
	target := snapshot.Target{Source: s.snapshotSource(work, ""), Fetch: s.fetchCommits(work.Dir)}
	applied, err := downloaded.Apply(ctx, target)
	if err = errors.Join(err, s.recording.Wait()); err != nil {
		return fmt.Errorf("%w: %w", errApply, err)
	}
	if applied.Base != "" {
		records.Base(applied.Base)
	}
	return s.describeRestored(downloaded.Contents, applied)
}

// downloadSnapshot downloads the archived snapshot into the session's records. If a later call may
// be successful, it returns errUnavailable or errDownload.
func (s *run) downloadSnapshot(ctx context.Context, records *workspace.Records,
	find func() (session.Snapshot, error)) (*snapshot.Archived, error) {
	found, err := find()
	if err != nil {
		return nil, err
	}
	key, err := s.snapshotKey()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	downloaded, err := snapshot.Download(ctx, s.archive, key, found, records.File(downloadFile))
	if err != nil && !errors.Is(err, snapshot.ErrAltered) {
		err = fmt.Errorf("%w: %w", errDownload, err)
	}
	return downloaded, err
}

// neverReady reports whether no earlier attempt became ready for work. Before an attempt is ready,
// it records only the states loading and error.
func (s *run) neverReady() bool {
	never := true
	err := s.journal.Events(0, func(e *session.Event) bool {
		state := e.StateOf()
		never = state == "" || state == session.StateLoading || state == session.StateError
		return never
	})
	return err == nil && never
}

// findSnapshot returns the archived snapshot. It first makes the archive refuse further writes from
// earlier attempts.
func findSnapshot(ctx context.Context, archive *handover.Archive) (session.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := archive.Claim(ctx)
	return found, unreachable(err)
}

// inParallel calls do() in the background. The returned function waits for its result.
func inParallel[T any](do func() (T, error)) func() (T, error) {
	result := sync.OnceValues(do)
	go func() { _, _ = result() }()
	return result
}

func unreachable(err error) error {
	if err == nil || errors.Is(err, handover.ErrNoSnapshot) || handover.Final(err) {
		return err
	}
	return fmt.Errorf("%w: %w", errUnavailable, err)
}

func (s *run) fetchCommits(dir string) func(context.Context, []string, string) error {
	return func(ctx context.Context, needed []string, wanted string) error {
		return workspace.FetchCommits(ctx, s.workspaceOptions(), dir, needed, wanted)
	}
}

// describeRestored records notices for the user and the agent. They describe the restored files and
// the events after the snapshot.
func (s *run) describeRestored(contents snapshot.Contents, applied *snapshot.Applied) error {
	name, err := s.journalName()
	if err != nil {
		return err
	}
	text := "The workspace was restored from the archive"
	var later []string
	outdated := true
	if name != contents.Journal {
		text += fmt.Sprintf(", as attempt %d left it. Changes to files after that attempt are lost.", contents.Attempt)
	} else if later, err = s.actionsAfter(contents.Event); err != nil {
		return err
	} else if later != nil {
		text += fmt.Sprintf(", as it was after event %d. Later events exist, and their changes to files are lost.",
			contents.Event)
	} else if contents.Attempt != s.env.attempt-1 {
		// The snapshot is not from the previous attempt. The attempts after the snapshot recorded
		// no work, but they may have changed files.
		text += fmt.Sprintf(", as attempt %d left it. If a later attempt changed files, these changes are lost.",
			contents.Attempt)
	} else {
		text += "."
		outdated = false
	}
	if s.doc.Repository != nil {
		text += " Files that git ignores, such as installed dependencies, were not restored."
	}
	if len(applied.Omitted) > 0 {
		var shown []string
		for _, name := range applied.Omitted[:min(len(applied.Omitted), 10)] {
			shown = append(shown, strconv.Quote(name)) // a name may contain line breaks
		}
		text += fmt.Sprintf(" Not saved, and lost: %s", strings.Join(shown, ", "))
		if more := len(applied.Omitted) - len(shown); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		text += "."
	}
	toAgent := text
	if len(later) > 0 {
		toAgent += "\nYou performed these actions after the snapshot. Their effects on files are lost, but other effects, " +
			"such as pushed commits, may remain:\n" + strings.Join(later, "\n")
	}
	return driver.Restored(s.journal, text, toAgent, outdated)
}

// actionsAfter lists the actions that the agent performed after an event. It ignores notices, and
// all state changes except the change to running. The list is nil if no other event follows. It is
// empty, but not nil, if other events follow and none of them is an action of the agent.
func (s *run) actionsAfter(event int) (later []string, err error) {
	size := 0
	err = s.journal.Events(event+1, func(e *session.Event) bool {
		state := e.StateOf()
		if e.Observation == session.ObservedNotice || state != "" && state != session.StateRunning {
			return true
		}
		if later == nil {
			later = []string{}
		}
		if e.Action == "" || e.Source != session.FromAgent || e.ToolCall == nil && e.Action != session.ActionRun {
			return true
		}
		line := driver.TranscriptLine(e)
		if size += len(line); size > maxLater {
			later = append(later, "and more")
			return false
		}
		later = append(later, line)
		return true
	})
	return later, err
}
