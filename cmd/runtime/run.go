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

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/agent"
	"github.com/parley-dev/parley/cmd/runtime/model"
	"github.com/parley-dev/parley/cmd/runtime/process"
	"github.com/parley-dev/parley/cmd/runtime/router"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// toolsTimeout is how long the session waits for tool servers before it goes on without them. They are
// offered when they come.
const toolsTimeout = 30 * time.Second

// startMargin is the most that a session leaves of its start deadline, so that it says itself what it is stuck at: part of
// the deadline had passed before it was there, and after the clone come the tools.
const startMargin = time.Minute

// firstTurn is the name of the only one that there is.
const firstTurn = "1"

// step of a session's start.
type step string

const (
	preparingWorkspace step = "preparing the workspace"
	connectingTools    step = "connecting to the tool servers"
	startingAgent      step = "starting the agent"
	ready              step = "ready"
)

// run is one run of a session.
type run struct {
	env environment
	doc *session.Document
	// workOver: an earlier attempt did what there was to do, and this one serves what came of it.
	workOver bool
	store    *secrets.Store
	output   *secrets.Output
	log      *slog.Logger
	activity *activity
	model    *model.Proxy // nil where the settings name none that can be used

	mu     sync.Mutex
	at     step
	work   workspace.Workspace
	router *router.Router
	agent  session.AgentStatus
}

func newRun(env environment, doc *session.Document, store *secrets.Store, out io.Writer) *run {
	output := store.Output(out)
	s := &run{
		env: env, doc: doc, store: store, output: output, activity: newActivity(),
		log: slog.New(slog.NewTextHandler(output.Lines(""), nil)),
		at:  preparingWorkspace, work: workspace.Workspace{Dir: env.workspace},
		agent:    session.AgentStatus{State: session.AgentNone},
		workOver: workspace.Ended(env.workspace),
	}
	if s.hasTask() {
		s.agent = session.AgentStatus{Name: doc.Agent.Name, State: session.AgentWaiting}
	}
	return s
}

// hasTask says whether there is an agent, and something for it to do that an earlier attempt has not done.
func (s *run) hasTask() bool {
	return !s.workOver && s.doc.Agent != nil && len(s.doc.Agent.Command) > 0 && s.doc.HasWork()
}

// until runs the session until it ends or is told to stop. Status 0 means that it ended of its own accord, and that
// the termination message says why.
func (s *run) until(stop <-chan os.Signal) (code int, err error) {
	local, err := s.serveLocally()
	if err == nil {
		err = s.serve()
	}
	if err != nil {
		return 1, fmt.Errorf("serve: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan *session.Termination, 1)
	go func() { ended <- s.session(ctx, local) }()
	var termination *session.Termination
	stopped := syscall.SIGTERM
	select {
	case termination = <-ended:
	case received := <-stop:
		s.log.Info("told to stop", "signal", received.String())
		stopped, _ = received.(syscall.Signal)
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
	if err := os.WriteFile(s.env.terminationLog, message, 0o644); err != nil {
		return 1, fmt.Errorf("say why the session ended: %w", err)
	}
	return 0, nil
}

// session prepares, serves and waits. It returns why the session ended; nil where ctx did. No child outlives it.
func (s *run) session(ctx context.Context, local string) *session.Termination {
	// Sooner than it must be known: nothing is prepared for work that is not done.
	if s.hasTask() && workspace.Begun(s.env.workspace) {
		return s.failed(ctx, workspace.ErrBegun)
	}
	if err := trust(s.doc.CABundle, s.env.home); err != nil {
		return s.failed(ctx, err)
	}
	work, err := workspace.Prepare(ctx, s.workspaceOptions())
	if err != nil {
		return s.failed(ctx, err)
	}
	s.set(func() { s.at, s.work = connectingTools, *work })
	if !process.Confinable() && len(s.doc.ToolServers.Stdio) > 0 {
		s.log.Warn("this kernel has no Landlock, so that the agent can look into the stdio tool servers, and they into it")
	}
	tools := router.New(s.routerOptions(work.Dir))
	s.set(func() { s.router = tools })
	defer s.runRouter(ctx, tools)()
	select {
	case <-tools.Settled():
	case <-time.After(toolsTimeout):
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		// Also where the tools came at the same moment: what is to stop begins no work.
		return nil
	}
	if !s.hasTask() {
		return s.waitIdle(ctx)
	}
	s.set(func() { s.at = startingAgent })
	memory := process.WatchMemory(s.env.cgroups)
	running, err := s.startAgent(work, local)
	if err != nil {
		return s.failed(ctx, err)
	}
	defer s.activity.begin()()
	s.set(func() { s.at, s.agent.State = ready, session.AgentRunning })
	select {
	case <-running.Ended():
		return s.agentEnded(running, memory)
	case <-ctx.Done():
		running.Stop()
		return nil
	}
}

// agentEnded says how the agent ended. Where the container outlives a process that was killed for its memory, nobody else knows why.
func (s *run) agentEnded(running *agent.Agent, memory process.Memory) *session.Termination {
	s.set(func() { s.agent.State = session.AgentEnded })
	// Without this record a later attempt would take the work for cut off.
	if err := workspace.End(s.env.workspace); err != nil {
		s.log.Error("that the work is over could not be recorded", "error", err)
	}
	termination := running.Termination()
	if termination.Reason == v1alpha1.ReasonFailed && memory.RanOut() {
		termination.Message += "; memory ran out, and the kernel killed a process of the session (" + session.OOMKilled + ")"
	}
	return &termination
}

// waitIdle serves the workspace and the tools until nobody uses them.
func (s *run) waitIdle(ctx context.Context) *session.Termination {
	s.set(func() { s.at = ready })
	s.activity.begin()() // the start was no idling
	timeout := s.doc.IdleTimeout.Duration
	select {
	case <-s.activity.idleFor(ctx, timeout):
		return &session.Termination{Reason: v1alpha1.ReasonIdle, Message: fmt.Sprintf("nothing happened for %s", timeout)}
	case <-ctx.Done():
		return nil
	}
}

func (s *run) failed(ctx context.Context, err error) *session.Termination {
	if ctx.Err() != nil {
		return nil
	}
	return &session.Termination{Reason: v1alpha1.ReasonFailed, Message: err.Error()}
}

// runRouter runs the router, and its servers, until stop is called.
func (s *run) runRouter(ctx context.Context, tools *router.Router) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tools.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// startAgent gives the agent the message, which no later attempt does again.
func (s *run) startAgent(work *workspace.Workspace, local string) (*agent.Agent, error) {
	input, err := agentInput(s.env, s.doc, work, local)
	if err != nil {
		return nil, err
	}
	if err := workspace.Begin(s.env.workspace); err != nil {
		return nil, err
	}
	if s.model != nil {
		if err := s.model.BeginTurn(firstTurn); err != nil {
			return nil, errors.Join(fmt.Errorf("record the turn: %w", err), workspace.Withdraw(s.env.workspace))
		}
	}
	env := agent.Environment(os.Environ(), s.doc, s.store, input)
	running, err := agent.Start(s.doc.Agent, input, env, work.Dir, s.output.Lines(""))
	if err != nil {
		return nil, errors.Join(err, workspace.Withdraw(s.env.workspace))
	}
	return running, nil
}

func (s *run) workspaceOptions() workspace.Options {
	settings := &s.doc.Settings
	options := workspace.Options{
		Dir: s.env.workspace, Home: s.env.home, Repository: s.doc.Repository, Log: s.log, Patience: patience(s.doc.StartDeadline.Duration),
		UserName: ptr.Deref(settings.GitUserName, ""), UserEmail: ptr.Deref(settings.GitUserEmail, ""),
	}
	if s.doc.Repository != nil && s.doc.Repository.TokenFile != "" {
		options.Token = s.store.Key(s.doc.Repository.TokenFile)
	}
	if self, err := os.Executable(); err == nil {
		options.Helper = self
	}
	return options
}

// patience is how long a session may take to clone its repository.
func patience(deadline time.Duration) time.Duration {
	deadline = cmp.Or(deadline, session.DefaultStartDeadline)
	return deadline - min(deadline/4, startMargin)
}

func (s *run) routerOptions(dir string) router.Options {
	return router.Options{
		Servers: s.doc.ToolServers,
		Key:     s.store.Key,
		Value:   s.store.Value,
		Mask:    s.store.Mask,
		Output:  func(server string) io.WriteCloser { return s.output.Lines("[" + server + "] ") },
		Dir:     dir,
		Env:     os.Environ(),
		Confine: process.Confine,
		Busy:    s.activity.begin,
		Log:     s.log,
	}
}
