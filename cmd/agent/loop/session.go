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

// Client is who the agent works for.
type Client interface {
	Notify(method string, params any) error
	Call(ctx context.Context, method string, params, result any) error
}

// Options are the same for all sessions of the program.
type Options struct {
	// Home is where the memory is.
	Home string
	// Model is nil where the settings name none. A session is refused then, so that the user is
	// told why.
	Model         llm.Model
	ContextWindow int
	// Condense says that a history that grows too long is summarised.
	Condense bool
	// Confirm says that the user is asked before each action.
	Confirm bool
	// RateActions says that the model rates each action.
	RateActions bool
	// Recording is done again with the first prompt of a session.
	Recording []Event
	// Synced is for tests; see turnlog.Log.
	Synced func(records int)
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
}

// kindImage is the kind of the error of an image that the agent cannot work in.
const kindImage = "image"

// errNoModel names the setting as both kinds of users know it: those of the HTTP API and those of
// the cluster's.
var errNoModel = failure(string(llm.Unusable), "no model is set: set llm_model in the settings (llmModel in "+
	"UserSettings)")

// failure is an error of a kind that clients know.
func failure(kind, message string) error {
	return &acp.Error{Code: acp.CodeInternal, Message: message, Data: &acp.ErrorData{Kind: kind}}
}

// New begins a session.
func New(ctx context.Context, client Client, options Options, params acp.SessionParams) (*Session, error) {
	if !filepath.IsAbs(params.Cwd) {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: "cwd must be an absolute path"}
	}
	id := rand.Text()
	s := &Session{id: id, options: options, client: client, state: newState()}
	first := turnlog.Record{Kind: turnlog.KindSession, Cwd: params.Cwd, Instructions: readInstructions(params.Cwd)}
	s.state.apply(first)
	if err := s.equip(ctx, params); err != nil {
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

// Load brings a session back from memory. With tell, the client is told again all that it was told
// before.
func Load(ctx context.Context, client Client, options Options, params acp.SessionParams, tell bool) (*Session, error) {
	log, records, err := turnlog.Open(options.Home, params.SessionID)
	if errors.Is(err, turnlog.ErrUnknown) {
		return nil, &acp.Error{Code: acp.CodeInvalidParams, Message: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	log.Synced = options.Synced
	s := &Session{id: params.SessionID, options: options, client: client, log: log, state: newState()}
	for _, record := range records {
		s.state.apply(record)
	}
	if filepath.IsAbs(params.Cwd) {
		s.state.cwd = params.Cwd
	}
	if err := s.equip(ctx, params); err != nil {
		s.Close()
		return nil, err
	}
	for _, record := range records {
		if !tell {
			break
		}
		if err := s.tell(record.Updates); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// equip gives the session its tools.
func (s *Session) equip(ctx context.Context, params acp.SessionParams) (err error) {
	if s.options.Model == nil {
		return errNoModel
	}
	if s.shell, err = tools.NewShell(s.state.cwd, s.id, s.state.shell); err != nil {
		if errors.Is(err, tools.ErrNoShell) {
			return failure(kindImage, err.Error())
		}
		return err
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

// ID names the session.
func (s *Session) ID() string { return s.id }

// Close ends the session's processes. A turn that is under way stays so in memory: the log is
// closed first, so that the end of its command is not taken for the user's wish.
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

// Cancel stops the turn that is under way.
func (s *Session) Cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
	}
}

var errBusy = &acp.Error{Code: acp.CodeInvalidRequest, Message: "a turn is under way; wait for its end"}

// Prompt begins a turn, and returns the work on it.
func (s *Session) Prompt(ctx context.Context, params acp.PromptParams) func() (acp.StopReason, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		return func() (acp.StopReason, error) { return "", errBusy }
	}
	ctx, cancel := context.WithCancel(ctx)
	s.cancel = cancel
	return func() (acp.StopReason, error) {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			cancel()
			s.cancel = nil
		}()
		return s.turn(ctx, params)
	}
}

// record writes a record, and then tells the client its updates.
func (s *Session) record(r turnlog.Record, updates ...acp.Update) error {
	for i, update := range updates {
		update.Meta = acp.Meta{acp.MetaSeq: s.state.seq + i + 1}
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
	return s.tell(r.Updates)
}

func (s *Session) tell(updates []json.RawMessage) error {
	for _, update := range updates {
		if err := s.client.Notify(acp.MethodUpdate, acp.UpdateParams{SessionID: s.id, Update: update}); err != nil {
			return err
		}
	}
	return nil
}

// Text tells a piece of an answer that is being written. It is not kept: the whole message follows.
func (s *Session) Text(piece string) { s.partial(acp.MessageChunk, piece) }

// Thought tells a piece of a thought in the same way.
func (s *Session) Thought(piece string) { s.partial(acp.ThoughtChunk, piece) }

func (s *Session) partial(kind, piece string) {
	if piece == "" {
		return
	}
	update, err := json.Marshal(acp.Update{Kind: kind, Content: acp.Text(piece), Meta: acp.Meta{acp.MetaPartial: true}})
	if err == nil {
		err = s.tell([]json.RawMessage{update})
	}
	if err != nil {
		slog.Error("the client cannot be told", "error", err)
	}
}
