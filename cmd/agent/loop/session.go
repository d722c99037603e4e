package loop

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/llm"
	"github.com/parley-dev/parley/cmd/agent/tools"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

// Client is the ACP client of a session.
type Client interface {
	Notify(method string, params any) error
	Call(ctx context.Context, method string, params, result any) error
}

// Options apply to all sessions of the program. Options.with adapts them to one session.
type Options struct {
	// Home is the directory in which sessions are stored.
	Home string
	// Model is nil if the settings name no model. Opening a session then fails, with a message for
	// the user.
	Model llm.Model
	// ModelName has the form provider/model.
	ModelName string
	// ContextWindow is the model's context window in tokens; 0 if it is unknown.
	ContextWindow int
	// Condense enables summaries of a history that gets too long.
	Condense bool
	// Confirm makes the agent ask the user before each action.
	Confirm bool
	// RateActions makes the model rate the risk of each action.
	RateActions bool
	// Recording is replayed when a session receives its first prompt.
	Recording []Event
	// Synced is set by tests; see turnlog.Log.
	Synced func(records int)
	// Clock is set by tests; nil means the system's clock.
	Clock Clock
}

// Options.with returns the options of one session. If the client sets acp.MetaAsks in meta, the
// agent asks before each action.
func (o Options) with(meta acp.Meta) Options {
	asks, _ := meta[acp.MetaAsks].(bool)
	o.Confirm = o.Confirm || asks
	return o
}

// Session is one conversation.
type Session struct {
	id      string
	options Options
	client  Client
	log     *turnlog.Log
	state   *state
	shell   *tools.Shell
	servers *tools.Servers
	tools   *tools.Set

	mu     sync.Mutex
	cancel context.CancelFunc
	// running is the name of the running turn. steering holds the messages for this turn.
	running  string
	steering []acp.PromptParams
}

const kindImage = "image"

// errNoModel contains the names of the setting in the HTTP API and in the Kubernetes API.
var errNoModel = failure(string(llm.Unusable), "no model is set: set llm_model in the settings (llmModel in "+
	"UserSettings)")

// failure returns an error with a kind that clients can read.
func failure(kind, message string) error {
	return &acp.Error{Code: acp.CodeInternal, Message: message, Data: &acp.ErrorData{Kind: kind}}
}

// New creates a session.
func New(ctx context.Context, client Client, options Options, params acp.SessionParams) (*Session, error) {
	if !filepath.IsAbs(params.Cwd) {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "cwd must be an absolute path"}
	}
	id := rand.Text()
	s := &Session{id: id, options: options.with(params.Meta), client: client, state: newState()}
	first := turnlog.Record{Kind: turnlog.KindSession, Cwd: params.Cwd, Instructions: readInstructions(params.Cwd),
		Environment: describeEnvironment(ctx, params.Cwd, s.clock().Now())}
	if replayed, _ := params.Meta[acp.MetaReplayed].(bool); replayed {
		first.Replayed = len(options.Recording)
	}
	s.state.apply(first)
	if err := s.openTools(ctx, params, false); err != nil {
		return nil, err
	}
	log, err := turnlog.Create(options.Home, id)
	if err == nil {
		s.log = log
		log.Synced = options.Synced
		err = log.Append(first)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Load loads a session from disk. If resend is true, the client receives all earlier updates again.
func Load(ctx context.Context, client Client, options Options, params acp.SessionParams,
	resend bool) (*Session, error) {
	log, records, err := turnlog.Open(options.Home, params.SessionID)
	if errors.Is(err, turnlog.ErrUnknown) {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	log.Synced = options.Synced
	s := &Session{id: params.SessionID, options: options.with(params.Meta), client: client, log: log, state: newState()}
	for _, record := range records {
		s.state.apply(record)
	}
	if filepath.IsAbs(params.Cwd) {
		s.state.cwd = params.Cwd
	}
	if err := s.openTools(ctx, params, true); err != nil {
		s.Close()
		return nil, err
	}
	for _, record := range records {
		if !resend {
			break
		}
		if err := s.notify(record.Updates); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// openTools opens the session's shell and its tool servers. loaded is set if the session had an
// earlier agent, which may have left processes running when it was killed.
func (s *Session) openTools(ctx context.Context, params acp.SessionParams, loaded bool) (err error) {
	if s.options.Model == nil {
		return errNoModel
	}
	if s.shell, err = tools.NewShell(s.state.cwd, s.id, s.state.shell); err != nil {
		if errors.Is(err, tools.ErrNoShell) {
			return failure(kindImage, err.Error())
		}
		return err
	}
	if loaded {
		s.shell.KillLeftovers()
	}
	if s.servers, err = tools.Connect(ctx, params.MCPServers); err != nil {
		s.shell.Close()
		return err
	}
	tasks := &tools.Tasks{}
	tasks.Restore(s.state.plan)
	s.tools = tools.NewSet(s.shell, s.state.cwd, tasks, s.servers, s.options.RateActions)
	return nil
}

// ID returns the ID of the session.
func (s *Session) ID() string { return s.id }

// Close ends the session's processes. It closes the log first, because the log must not record an
// end of the running turn. The next process then resumes the turn.
func (s *Session) Close() {
	if s.log != nil {
		_ = s.log.Close()
	}
	s.Cancel()
	if s.shell != nil {
		s.shell.Close()
	}
	if s.servers != nil {
		s.servers.Close()
	}
}

// Cancel stops the running turn.
func (s *Session) Cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
	}
}

var errBusy = &acp.Error{Code: acp.CodeInvalidRequest, Message: "a turn is already running; wait until it ends"}

// Prompt reserves the session for a turn, and returns the function that runs the turn.
func (s *Session) Prompt(ctx context.Context, params acp.PromptParams) func() (acp.StopReason, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		return func() (acp.StopReason, error) { return "", errBusy }
	}
	ctx, cancel := context.WithCancel(ctx)
	s.cancel = cancel
	s.running, _ = params.Meta[acp.MetaTurn].(string)
	return func() (acp.StopReason, error) {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			cancel()
			s.cancel, s.steering = nil, nil
		}()
		return s.turn(ctx, params)
	}
}

// record writes the record r with these updates, and then sends the updates to the client.
func (s *Session) record(r turnlog.Record, updates ...acp.Update) error {
	for i, update := range updates {
		if update.Meta == nil {
			update.Meta = acp.Meta{}
		}
		update.Meta[acp.MetaSeq] = s.state.seq + i + 1
		encoded, err := json.Marshal(update)
		if err != nil {
			return err
		}
		r.Updates = append(r.Updates, encoded)
	}
	if err := s.log.Append(r); err != nil {
		return err
	}
	s.state.apply(r)
	return s.notify(r.Updates)
}

func notice(text string) acp.Update {
	return acp.Update{Kind: acp.ThoughtChunk, Content: acp.Text(text), Meta: acp.Meta{acp.MetaNotice: true}}
}

func (s *Session) notify(updates []json.RawMessage) error {
	for _, update := range updates {
		if err := s.client.Notify(acp.MethodUpdate, acp.UpdateParams{SessionID: s.id, Update: update}); err != nil {
			return err
		}
	}
	return nil
}

// sendPartial sends an update without storing it. If the update is a piece of a message, the
// complete message follows.
func (s *Session) sendPartial(update acp.Update) {
	if update.Meta == nil {
		update.Meta = acp.Meta{}
	}
	update.Meta[acp.MetaPartial] = true
	encoded, err := json.Marshal(update)
	if err == nil {
		err = s.notify([]json.RawMessage{encoded})
	}
	if err != nil {
		slog.Error("cannot send an update to the client", "error", err)
	}
}

func (s *Session) sendPieces(text, thought string) {
	for _, piece := range [][2]string{{acp.MessageChunk, text}, {acp.ThoughtChunk, thought}} {
		if piece[1] != "" {
			s.sendPartial(acp.Update{Kind: piece[0], Content: acp.Text(piece[1])})
		}
	}
}
