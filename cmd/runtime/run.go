package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/files"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
	"github.com/parley-dev/parley/cmd/runtime/process"
	"github.com/parley-dev/parley/cmd/runtime/publish"
	"github.com/parley-dev/parley/cmd/runtime/router"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
	"github.com/parley-dev/parley/cmd/runtime/snapshot"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// readyTimeout is how long a session waits for its tool servers before it becomes ready.
	readyTimeout = 5 * time.Second
	// toolsTimeout is how long the agent waits for missing tool servers after the session has
	// become ready. The agent can still use a server that connects later.
	toolsTimeout = 25 * time.Second
)

// startMargin is the part of the start deadline that the clone must not use. It is reserved for the
// start of the pod and the tools, and for the report of a stuck clone. If the deadline is short, a
// quarter of it is reserved instead.
const startMargin = time.Minute

// Names of files in the session's records. The journal is downloaded to downloadedJournal. It gets
// the name journalFile when its events are on disk.
const (
	journalFile       = "events.jsonl"
	downloadedJournal = "events.downloaded"
)

type step string

const (
	preparingWorkspace step = "preparing the workspace"
	connectingTools    step = "connecting to the tool servers"
	ready              step = "ready"
)

// run is one attempt of a session.
type run struct {
	env      environment
	doc      *session.Document
	store    *secrets.Store
	output   *secrets.Output
	log      *slog.Logger
	activity *activity
	model    *modelproxy.Proxy
	llm      session.ModelSettings // the current model
	// gitURL and gitHeader configure git to use the git proxy. They are empty if the session has no
	// token for the repository's host.
	gitURL, gitHeader string
	// local is the URL of the loopback server that the agent uses.
	local string
	// secured is set if the session has a certificate. Tokens are then accepted only over TLS.
	secured bool
	// answering is read-locked by each handler whose response must be sent before the process exits.
	answering sync.RWMutex
	stopping  chan struct{}
	readied   chan struct{} // closed when the session is ready
	over      chan struct{} // closed when the session has ended, before the hand-over to the archive

	mu        sync.Mutex
	at        step
	work      workspace.Workspace
	router    *router.Router
	journal   *journal.Journal
	begun     bool // set when the driver runs
	driver    *driver.Driver
	files     *files.Server
	publisher *publish.Publisher
	keeper    *handover.Keeper // nil without an archive
	turns     *handover.TurnReporter
	archive   *handover.Archive // nil if there is none
	snapshots *snapshots        // nil if none are taken
	// restoring is set if the earlier attempts' files must be restored. unrestored is set while
	// this attempt lacks these files.
	restoring, unrestored bool
	// recording writes restoreFile and snapshotFile in the background.
	recording errgroup.Group
	// findSnapshot returns the description of the archived snapshot, and fetchSnapshot returns the
	// downloaded snapshot. Both are nil if nothing is restored from the archive.
	findSnapshot  func() (session.Snapshot, error)
	fetchSnapshot func() (*snapshot.Archived, error)
	// requestedJournal returns the journal that requestRestoration requested from the archive.
	// abandonRequests cancels the requests of requestRestoration. Both are nil if it made none.
	requestedJournal func() (io.ReadCloser, error)
	abandonRequests  func()
	// noBranch is the error of the clone if the repository no longer has the session's branch. The
	// attempt then clones the default branch, and needs a snapshot to restore the deleted branch.
	noBranch error
	// stopKeeping stops sending events and outcomes to the archive.
	stopKeeping func()
	stoppedAt   time.Time
	// lost is a notice about lost events of earlier attempts, or empty.
	lost    string
	endFile string
	// ended is the termination that an earlier attempt could not report.
	ended *session.Termination
}

func newRun(env environment, doc *session.Document, store *secrets.Store, out io.Writer) *run {
	output := store.Output(out)
	return &run{
		env: env, doc: doc, store: store, output: output, activity: newActivity(memory.trim),
		log:      slog.New(slog.NewTextHandler(output.Lines(""), nil)),
		stopping: make(chan struct{}), readied: make(chan struct{}), over: make(chan struct{}),
		at: preparingWorkspace, work: workspace.Workspace{Dir: env.workspace},
		llm: modelAtStart(doc, store.Key(session.LLMAPIKeyFile)),
	}
}

// runUntil runs the session until it ends or receives a signal. The code is 0 if the session ended
// by itself and wrote its termination message.
func (s *run) runUntil(stop <-chan os.Signal) (code int, err error) {
	defer s.awaitResponses()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan *session.Termination, 1)
	go func() {
		termination := s.session(ctx)
		close(s.over)
		s.leave()
		ended <- termination
	}()
	var termination *session.Termination
	stopped := syscall.SIGTERM
	select {
	case termination = <-ended:
	case received := <-stop:
		s.log.Info("received a stop signal", "signal", received.String())
		stopped, _ = received.(syscall.Signal)
		s.set(func() { s.stoppedAt = time.Now() })
		close(s.stopping)
		cancel()
		termination = <-ended
	}
	if termination == nil {
		return 128 + int(stopped), nil
	}
	termination.Message = s.store.Mask(termination.Message)
	s.log.Info("the session ends", "reason", termination.Reason, "message", termination.Message)
	message, err := termination.Encode()
	if err != nil {
		return 1, err
	}
	if err := os.WriteFile(s.env.TerminationLog, message, 0o644); err != nil {
		return 1, fmt.Errorf("write the termination message: %w", err)
	}
	s.removePendingEnd()
	return 0, nil
}

// session prepares the workspace, serves the tools and runs the agent. It returns nil if ctx ended.
// All child processes have ended when it returns.
func (s *run) session(ctx context.Context) *session.Termination {
	records, err := s.openRecords(ctx)
	if err != nil {
		return s.failed(ctx, err)
	}
	work, err := workspace.Prepare(ctx, s.workspaceOptions())
	if errors.Is(err, workspace.ErrNoBranch) && s.restoring {
		s.noBranch = err // a snapshot may have the commits of the deleted branch
		if work, err = workspace.Prepare(ctx, s.workspaceOptions()); err != nil {
			err = s.noBranch
		}
	}
	if err != nil {
		return s.failed(ctx, err)
	}
	if work, err = s.restoreWorkspace(ctx, records, work); err != nil {
		return s.failed(ctx, err)
	}
	base := records.Base(work.Commit)
	s.set(func() {
		s.at, s.work, s.files = connectingTools, *work, &files.Server{Dir: work.Dir, Base: base, Mask: s.store.Mask}
	})
	if !process.Confinable() && len(s.doc.ToolServers.Stdio) > 0 {
		s.log.Warn("this kernel has no Landlock: the agent and the stdio tool servers can inspect each other's processes")
	}
	publisher := s.newPublisher(work)
	options := s.routerOptions(work.Dir)
	options.Builtin = publisher.Tools()
	tools := router.New(options)
	s.set(func() { s.router, s.publisher = tools, publisher })
	defer inBackground(ctx, tools.Run)()
	settled := settles(ctx, tools, readyTimeout)
	if ctx.Err() != nil {
		// A stopping session starts no work, even if its tool servers are connected.
		return nil
	}
	drive, err := s.drive(work, s.local)
	if err != nil {
		return s.failed(ctx, err)
	}
	s.keepSnapshots(records, work, drive.Notice)
	s.set(func() { s.at, s.driver = ready, drive })
	close(s.readied)
	if !settled && s.ended == nil {
		noticeMissing(drive, tools, "The agent waits for the tool server %s: %s.")
		settles(ctx, tools, toolsTimeout)
	}
	// If ctx has ended, drive.Run must still be called: only drive.Run makes the driver refuse
	// messages.
	if ctx.Err() == nil {
		// Each attempt reports missing servers again, because it opens new connections.
		noticeMissing(drive, tools,
			"The tool server %s cannot be used: %s. The agent starts without the server's tools; Parley tries to connect again.")
	}
	s.activity.begin()() // the start does not count as idle time
	s.set(func() { s.begun = true })
	termination := drive.Run(ctx)
	s.writePendingEnd(termination)
	if termination != nil {
		termination.Result = s.result(work.Dir, base)
	}
	return termination
}

// openRecords opens the records of earlier attempts. They include the agent's home directory with
// the agent's own state.
func (s *run) openRecords(ctx context.Context) (*workspace.Records, error) {
	if err := os.MkdirAll(s.env.workspace, 0o755); err != nil {
		return nil, fmt.Errorf("make the workspace: %w", err)
	}
	records, err := workspace.OpenRecords(s.env.workspace)
	if err != nil {
		return nil, err
	}
	home, err := records.Home()
	if err != nil {
		return nil, err
	}
	s.env.home = home
	if err := s.writeDocument(); err != nil {
		return nil, err
	}
	// Set the variables that the agent and the tool servers inherit. trust() must be called before the
	// first TLS connection (perhaps to the archive), because Go reads the trusted certificates only
	// once. An error of these calls is returned at the end of this function, because the journal must
	// be open to record the error.
	prepared := errors.Join(
		os.Setenv("HOME", home), os.Setenv("PARLEY_SESSION_DIR", s.env.sessionDir),
		os.Setenv("PARLEY_WORKSPACE", s.env.workspace), trust(s.doc.CABundle, home, s.env.image),
	)
	if s.restoring, err = s.mustRestore(records); err != nil {
		return nil, err
	}
	kept := s.archive
	if kept == nil {
		kept = s.openArchive()
	}
	if s.abandonRequests != nil {
		context.AfterFunc(ctx, s.abandonRequests)
	}
	journalOpened := make(chan struct{})
	if s.restoring && kept != nil {
		if s.findSnapshot == nil {
			s.findSnapshot = inParallel(func() (session.Snapshot, error) { return findSnapshot(ctx, kept) })
		}
		s.fetchSnapshot = inParallel(func() (*snapshot.Archived, error) {
			// The download of the journal has a time limit, so a large snapshot must not delay it.
			if found, err := s.findSnapshot(); err == nil && found.Chunks > 1 {
				<-journalOpened
			}
			return s.downloadSnapshot(ctx, records, s.findSnapshot)
		})
	}
	events, err := s.openJournal(ctx, kept, records)
	close(journalOpened)
	if err != nil {
		return nil, err
	}
	s.set(func() { s.journal, s.endFile = events, records.File(endFile) })
	s.ended = s.readPendingEnd()
	// Restore the usage before the workspace is prepared. This attempt's ending then contains the
	// usage even if the preparation fails.
	if err := s.restoreUsage(); err != nil {
		s.log.Warn("the recorded usage of the model cannot be read", "error", err)
	}
	s.keep(kept, events)
	return records, prepared
}

func (s *run) restoreUsage() error {
	counted, err := driver.Usage(s.journal)
	if err != nil {
		return err
	}
	return s.model.Restore(counted)
}

func (s *run) failed(ctx context.Context, err error) *session.Termination {
	if ctx.Err() != nil {
		return nil
	}
	if events := get(s, &s.journal); events != nil {
		if failed := driver.Failed(events, err.Error()); failed != nil {
			s.log.Error("recording the end of the session failed", "error", failed)
		}
	}
	return &session.Termination{Reason: v1alpha1.ReasonFailed, Message: err.Error()}
}

// settles waits until every tool server is connected or has failed. It returns false if that takes
// too long or ctx ends.
func settles(ctx context.Context, tools *router.Router, timeout time.Duration) bool {
	select {
	case <-tools.Settled():
		return true
	case <-time.After(timeout):
	case <-ctx.Done():
	}
	return false
}

// noticeMissing tells the user about each tool server that is not connected. server.Error contains
// only the server's host, because the server's URL may contain a key.
func noticeMissing(drive *driver.Driver, tools *router.Router, format string) {
	for _, server := range tools.Health() {
		if server.State != session.ToolServerConnected {
			drive.Notice(fmt.Sprintf(format, server.Name, cmp.Or(server.Error, "it does not answer")))
		}
	}
}

// inBackground runs do() until stop() is called. stop() waits until do() has returned.
func inBackground(ctx context.Context, do func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { do(ctx) })
	return func() { cancel(); running.Wait() }
}

func (s *run) workspaceOptions() workspace.Options {
	settings := &s.doc.Settings
	options := workspace.Options{
		Dir: s.env.workspace, Home: s.env.home, Repository: s.doc.Repository, Token: s.providerToken(), Log: s.log,
		Patience: cloneTimeout(s.doc.StartDeadline.Duration),
		UserName: ptr.Deref(settings.GitUserName, ""), UserEmail: ptr.Deref(settings.GitUserEmail, ""),
		History: s.doc.History, ProxyURL: s.gitURL, ProxyHeader: s.gitHeader,
	}
	if options.UserEmail == "" && ptr.Deref(settings.EmailVerified, false) {
		options.UserEmail = ptr.Deref(settings.Email, "")
	}
	if s.noBranch != nil {
		options.Repository = ptr.To(*s.doc.Repository)
		options.Repository.Branch = ""
	}
	return options
}

// providerToken returns the user's token for the repository's host, or an empty string.
func (s *run) providerToken() string {
	if s.doc.Repository == nil || s.doc.Repository.TokenFile == "" {
		return ""
	}
	return s.store.Key(s.doc.Repository.TokenFile)
}

func cloneTimeout(deadline time.Duration) time.Duration {
	deadline = cmp.Or(deadline, session.DefaultStartDeadline)
	return deadline - min(deadline/4, startMargin)
}

func (s *run) routerOptions(dir string) router.Options {
	return router.Options{
		Servers: s.doc.ToolServers,
		Key:     s.store.Key,
		Value:   s.store.Value,
		Mask:    s.store.Mask,
		Output:  s.output.Lines,
		Dir:     dir,
		Env:     s.env.children(),
		Confine: process.Confine,
		Busy:    s.activity.begin,
		Log:     s.log,
	}
}
