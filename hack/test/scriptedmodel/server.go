package scriptedmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// maxBody is the largest request body that Anthropic accepts.
const maxBody = 32 << 20

// Server is an http.Handler that answers from a script.
type Server struct {
	mux *http.ServeMux

	mu         sync.Mutex
	script     Script
	used       []int
	requests   []*Request
	violations []string
	spent      Usage
	changed    chan struct{}

	connections atomic.Int64
}

// CountConnections lets the model count the open connections of the HTTP server that serves it.
func (s *Server) CountConnections(server *http.Server) {
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.connections.Add(1)
		case http.StateClosed, http.StateHijacked:
			s.connections.Add(-1)
		}
	}
}

// Connections returns the number of open connections. If it is 0, no request of an ended process
// can still arrive.
func (s *Server) Connections() int64 { return s.connections.Load() }

// wire implements the API of a provider.
type wire interface {
	name() Wire
	// read returns the request and all errors in it.
	read(header http.Header, body object) (*Request, []string)
	// whole writes the answer as one JSON body. stream writes it as events.
	whole(w http.ResponseWriter, a answer)
	stream(s *events, a answer)
}

// answer is a step that answers a request.
type answer struct {
	Step
	model string
	// number is part of generated IDs. The IDs differ between steps, but are the same in every run.
	number int
}

func (a answer) usage() Usage {
	if a.Usage != nil {
		return *a.Usage
	}
	return Usage{Input: 10, Output: 5}
}

// New makes a server for the script.
func New(script Script) *Server {
	if script.Default == "" {
		script.Default = "Scripted."
	}
	s := &Server{mux: http.NewServeMux(), script: script, used: make([]int, len(script.Steps)),
		changed: make(chan struct{})}
	s.mux.Handle("POST /v1/messages", s.serve(messagesWire{}))
	s.mux.Handle("POST /v1/chat/completions", s.serve(chatWire{}))
	s.mux.Handle("POST /v1/responses", s.serve(responsesWire{}))
	s.mux.HandleFunc("POST /v1beta/models/{call}", s.serveGoogle)
	s.mux.HandleFunc("POST /v1/messages/count_tokens", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, io.LimitReader(r.Body, maxBody))
		writeJSON(w, http.StatusOK, map[string]any{"input_tokens": n / 4})
	})
	s.mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "has_more": false, "data": []any{map[string]any{
			"id": "scripted", "type": "model", "object": "model", "created": 0, "created_at": "2026-01-01T00:00:00Z",
			"display_name": "A stub that answers from a script", "owned_by": "a stub, no model"}}})
	})
	return s
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Scripted-Model", "a stub that answers from a script")
	s.mux.ServeHTTP(w, r)
}

// Requests returns all requests received so far.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Violations describes all invalid requests and failed checks.
func (s *Server) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// Spent returns the total reported usage.
func (s *Server) Spent() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spent
}

// Remaining returns the number of steps that can still answer requests.
func (s *Server) Remaining() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for i, step := range s.script.Steps {
		if s.used[i] < max(1, step.Times) {
			n++
		}
	}
	return n
}

// Received returns a channel that is closed when the next request arrives. Call Received before you
// call Requests, so that you miss no request.
func (s *Server) Received() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Server) serve(wire wire) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); err != nil && !tooLarge {
			return // the client was killed before it had sent its request
		}
		var decoded object
		if err == nil {
			err = json.Unmarshal(body, &decoded)
		}
		request, wrong := wire.read(r.Header, decoded)
		if err != nil {
			wrong = []string{"the body is not valid JSON"}
		}
		request.Wire, request.Raw = wire.name(), body
		request.HasAuthorization = r.Header.Get("Authorization") != ""
		request.HasAPIKey = r.Header.Get("x-api-key") != "" || r.Header.Get("x-goog-api-key") != ""
		request.Cached = strings.Count(string(body), `"cache_control"`)
		request.count()
		step, wrong := s.take(request, wrong)
		if len(wrong) > 0 {
			writeFailure(w, wire.name(), Failure{Kind: BadRequest, Message: strings.Join(wrong, "; ")})
			return
		}
		if step.Hold != nil {
			select {
			case <-step.Hold:
			case <-r.Context().Done():
				return
			}
		}
		s.answer(r.Context(), w, wire, request, step)
	})
}

func (s *Server) answer(ctx context.Context, w http.ResponseWriter, wire wire, request *Request, step Step) {
	if step.Reset {
		panic(http.ErrAbortHandler)
	}
	if step.Failure != nil {
		writeFailure(w, wire.name(), *step.Failure)
		return
	}
	if s.script.Window > 0 && step.Usage == nil {
		step.Usage = &Usage{Input: request.Tokens, Output: 1 + len(step.Text)/charactersPerToken}
	}
	a := answer{Step: step, model: request.Model, number: request.Step}
	s.mu.Lock()
	used := a.usage()
	s.spent = Usage{s.spent.Input + used.Input, s.spent.Output + used.Output, s.spent.Cached + used.Cached}
	s.mu.Unlock()
	if !request.Stream {
		wire.whole(w, a)
		return
	}
	out := newEvents(w)
	wire.stream(out, a)
	if step.Break {
		out.breakOff()
	}
	if step.Pause != nil {
		out.pause(ctx, step.Pause)
	}
	out.flush()
}

// take chooses the step for a request and records the request.
func (s *Server) take(request *Request, wrong []string) (Step, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		for _, w := range wrong {
			s.violations = append(s.violations, fmt.Sprintf("request %d: %s", len(s.requests), w))
		}
		s.requests = append(s.requests, request)
		close(s.changed)
		s.changed = make(chan struct{})
	}()
	request.Step = refused
	if len(wrong) > 0 {
		return Step{}, wrong
	}
	if failure := s.script.refusal(request); failure != nil {
		return Step{Failure: failure}, nil
	}
	request.Step = s.find(request)
	if request.Step == answeredByDefault {
		return Step{Text: s.script.Default}, nil
	}
	s.used[request.Step]++
	step := s.script.Steps[request.Step]
	step.Calls = slices.Clone(step.Calls)
	for i := range step.Calls {
		if step.Calls[i].ID == "" {
			step.Calls[i].ID = fmt.Sprintf("call_%d_%d", request.Step, i)
		}
		if len(step.Calls[i].Input) == 0 {
			step.Calls[i].Input = json.RawMessage(`{}`)
		}
	}
	if step.Check != nil {
		if err := step.Check(request); err != nil {
			wrong = []string{fmt.Sprintf("step %d: %v", request.Step, err)}
		}
	}
	return step, wrong
}

func (s *Server) find(request *Request) int {
	for i, step := range s.script.Steps {
		if s.used[i] >= max(1, step.Times) {
			continue
		}
		switch {
		case step.When != nil || step.Contains != "":
			if (step.When == nil || step.When(request)) && (step.Contains == "" || request.Contains(step.Contains)) {
				return i
			}
		case len(request.Tools) > 0:
			return i
		}
	}
	return answeredByDefault
}
