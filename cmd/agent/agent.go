package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/version"
	"github.com/parley-dev/parley/cmd/agent/loop"
)

// agent handles the requests of an ACP client.
type agent struct {
	conn    *acp.Conn
	options loop.Options

	mu       sync.Mutex
	sessions map[string]*loop.Session
}

func (a *agent) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, session := range a.sessions {
		session.Close()
	}
}

// Request implements acp.Handler.
func (a *agent) Request(ctx context.Context, method string, params json.RawMessage) func() (any, error) {
	switch method {
	case acp.MethodInitialize:
		return func() (any, error) { return initialized, nil }
	case acp.MethodAuthenticate:
		return func() (any, error) { return struct{}{}, nil }
	case acp.MethodNewSession, acp.MethodLoadSession, acp.MethodResumeSession:
		return func() (any, error) { return a.openSession(ctx, method, params) }
	case acp.MethodPrompt:
		return a.prompt(ctx, params)
	}
	return acp.NoMethod(method)
}

// Notification implements acp.Handler.
func (a *agent) Notification(method string, params json.RawMessage) {
	var p acp.PromptParams // session/cancel has only the session ID
	if json.Unmarshal(params, &p) != nil {
		return
	}
	session := a.session(p.SessionID)
	switch {
	case session == nil:
	case method == acp.MethodCancel:
		session.Cancel()
	case method == acp.MethodSteer:
		session.Steer(p)
	}
}

// Noise implements acp.Handler.
func (a *agent) Noise(string) {
	fmt.Fprintln(os.Stderr, "agent: the client sent a line that is not a JSON-RPC message")
}

var initialized = acp.InitializeResult{
	ProtocolVersion: acp.Version,
	AgentInfo:       acp.Info{Name: "parley-agent", Title: "CodeActAgent", Version: version.Parley},
	AgentCapabilities: acp.AgentCapabilities{
		LoadSession:         true,
		PromptCapabilities:  acp.PromptCapabilities{Image: true, EmbeddedContext: true},
		MCPCapabilities:     acp.MCPCapabilities{HTTP: true},
		SessionCapabilities: acp.SessionCapabilities{Resume: json.RawMessage(`{}`)},
		Meta: acp.Meta{acp.MetaExactReplay: true, acp.MetaReplays: true, acp.MetaReason: true,
			acp.MetaSteers: true},
	},
	AuthMethods: []any{},
}

func invalid(err error) error {
	return &acp.Error{Code: acp.CodeInvalidParams, Message: "invalid parameters: " + err.Error()}
}

// openSession creates a session, or loads one from disk.
func (a *agent) openSession(ctx context.Context, method string, params json.RawMessage) (any, error) {
	var p acp.SessionParams
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, invalid(err)
	}
	if method == acp.MethodNewSession {
		session, err := loop.New(ctx, a.conn, a.options, p)
		if err != nil {
			return nil, err
		}
		a.add(session)
		return acp.NewSessionResult{SessionID: session.ID()}, nil
	}
	a.mu.Lock()
	if known := a.sessions[p.SessionID]; known != nil {
		known.Close() // Load reads the session from disk again
		delete(a.sessions, p.SessionID)
	}
	a.mu.Unlock()
	session, err := loop.Load(ctx, a.conn, a.options, p, method == acp.MethodLoadSession)
	if err != nil {
		return nil, err
	}
	a.add(session)
	return struct{}{}, nil
}

func (a *agent) prompt(ctx context.Context, params json.RawMessage) func() (any, error) {
	var p acp.PromptParams
	if err := json.Unmarshal(params, &p); err != nil {
		return func() (any, error) { return nil, invalid(err) }
	}
	session := a.session(p.SessionID)
	if session == nil {
		unknown := &acp.Error{Code: acp.CodeInvalidParams, Message: "unknown session; load it first"}
		return func() (any, error) { return nil, unknown }
	}
	work := session.Prompt(ctx, p)
	return func() (any, error) {
		reason, err := work()
		if err != nil {
			return nil, err
		}
		return acp.PromptResult{StopReason: reason}, nil
	}
}

func (a *agent) session(id string) *loop.Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sessions[id]
}

func (a *agent) add(session *loop.Session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions[session.ID()] = session
}
