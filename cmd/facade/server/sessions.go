package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/deadline"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

const (
	// maxUploads limits the bytes of one upload.
	maxUploads = 64 << 20

	uploadTimeout = 10 * time.Minute
	// writeTimeout limits the time in which a client must read each piece of a response.
	writeTimeout = 30 * time.Second

	patchType = "text/plain; charset=utf-8"
)

func (s *server) sessionOperations() map[string]map[string]operation {
	get := func(do func(context.Context, request) (any, error)) map[string]operation {
		return map[string]operation{"GET": {do: do, onConversation: true}}
	}
	serve := func(method string, serve func(http.ResponseWriter, request) error) map[string]operation {
		return map[string]operation{method: {serve: serve}}
	}
	// ask returns an operation that reads from the session or, if the conversation has ended, from
	// the archive. It passes the named query parameters on to the session.
	ask := func(path string, archived func(context.Context, request) (any, error), names ...string) map[string]operation {
		return get(func(ctx context.Context, r request) (any, error) {
			if archived != nil && s.isOver(r.conversation) {
				return archived(ctx, r)
			}
			return s.sessions.Read(ctx, r.conversation, live.Call{Path: path, Query: r.parameters(names),
				Held: r.held}, live.MaxResponse)
		})
	}
	fixed := func(body any) map[string]operation {
		return get(func(context.Context, request) (any, error) { return body, nil })
	}
	events := get(s.events)
	events["POST"] = operation{do: s.event, readsBody: true, onConversation: true}
	return map[string]map[string]operation{
		"/events":        events,
		"/events/stream": serve("GET", s.stream),
		"/message":       {"POST": {do: s.message, readsBody: true, onConversation: true}},
		"/trajectory":    serve("GET", s.trajectory),
		"/list-files":    ask(session.FilesPath, nil, "path"),
		"/select-file":   get(s.file),
		"/zip-directory": serve("GET", s.zip),
		"/upload-files":  serve("POST", s.upload),
		"/git/changes":   ask(session.ChangesPath, s.archivedChanges),
		"/git/diff":      ask(session.DiffPath, s.archivedDiff, "path"),
		"/git/patch":     serve("GET", s.patch),
		"/git/push":      s.publish(session.PushPath), "/git/pull-request": s.publish(session.PullRequestPath),
		"/usage": ask(session.UsagePath, s.archivedUsage),
		"/config": get(func(_ context.Context, r request) (any, error) {
			return map[string]string{"runtime_id": string(r.conversation.UID), "session_id": r.conversation.Name}, nil
		}),
		"/vscode-url":  fixed(map[string]any{"vscode_url": nil}),
		"/web-hosts":   fixed(map[string]any{"hosts": map[string]string{}}),
		"/microagents": fixed(map[string]any{"microagents": []string{}}),
	}
}

// file reads a file of the session. The query parameter is called file here, and path in the
// request to the session.
func (s *server) file(ctx context.Context, r request) (any, error) {
	name := r.URL.Query().Get("file")
	if name == "" {
		return nil, answer.Invalid(rest.Detail{Type: "missing", Loc: rest.Location{"query", "file"}, Msg: "Field required"})
	}
	return s.sessions.Read(ctx, r.conversation, live.Call{Path: session.FilePath, Query: url.Values{"path": {name}},
		Held: r.held}, live.MaxResponse)
}

func (s *server) message(ctx context.Context, r request) (any, error) {
	message, images, details := rest.DecodeMessage(r.body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	var err error
	if r.body, err = json.Marshal(map[string]any{"action": session.ActionMessage,
		"args": map[string]any{"content": message, "image_urls": images}}); err != nil {
		return nil, err
	}
	return s.event(ctx, r)
}

// event sends a user's event to the session. Success means that the event is on the session's disk.
func (s *server) event(ctx context.Context, r request) (any, error) {
	key := r.Header.Get(session.IdempotencyHeader)
	if len(key) > session.MaxIdempotencyKey {
		return nil, answer.Invalid(rest.LongKey)
	}
	note(r.Request, func(n *noted) { n.action = actionOf(r.body) })
	if isMessage(r.body) {
		return s.sendMessage(r.Context(), r.conversation, message{user: r.user, body: r.body, key: key, held: r.held,
			free: r.free})
	}
	return s.sendEvent(ctx, r.conversation, r.held, r.body, key)
}

func (s *server) sendEvent(ctx context.Context, c *v1alpha1.Conversation, hold *limits.Hold, body []byte,
	key string) (json.RawMessage, error) {
	return s.sessions.Read(ctx, c, live.Call{Method: http.MethodPost, Path: session.EventsPath,
		Body: bytes.NewReader(body), Type: "application/json", Key: key, Held: hold}, live.MaxResponse)
}

// publish returns the operation that asks the session to push its changes. Depending on the path,
// the session also opens a pull request.
func (s *server) publish(path string) map[string]operation {
	return map[string]operation{"POST": {readsBody: true, onConversation: true,
		do: func(ctx context.Context, r request) (any, error) {
			return s.sessions.Read(ctx, r.conversation, live.Call{Method: http.MethodPost, Path: path,
				Body: bytes.NewReader(r.body), Type: "application/json", Held: r.held}, live.MaxResponse)
		}}}
}

func (s *server) patch(w http.ResponseWriter, r request) error {
	if s.isOver(r.conversation) {
		return s.archivedPatch(w, r)
	}
	return s.forward(w, r, session.PatchPath, patchType, session.MaxPatch+1<<10)
}

func (s *server) zip(w http.ResponseWriter, r request) error {
	w.Header().Set("Content-Disposition", "attachment; filename=workspace.zip")
	return s.forward(w, r, session.ZipPath, "application/zip", 0)
}

// forward streams a response of the session, up to limit bytes; zero means no limit.
func (s *server) forward(w http.ResponseWriter, r request, path, contentType string, limit int64) error {
	response, err := s.sessions.Ask(r.Context(), r.conversation, live.Call{Path: path})
	if err != nil {
		w.Header().Del("Content-Disposition")
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body := r.held.Download(r.Context(), response.Body)
	if limit > 0 {
		body = io.LimitReader(body, limit)
	}
	sendText(w, contentType, body)
	return nil
}

func sendText(w http.ResponseWriter, contentType string, from io.Reader) {
	answer.Head(w, contentType)
	if _, err := io.Copy(newDeadlineWriter(w), from); err != nil {
		panic(http.ErrAbortHandler) // the client must see that the response is incomplete
	}
}

// newDeadlineWriter returns a writer that sends each piece of a response immediately. The client
// gets a new deadline for each piece.
func newDeadlineWriter(w http.ResponseWriter) *deadline.Writer {
	return &deadline.Writer{ResponseWriter: w, Timeout: writeTimeout, Flushing: true}
}

func (s *server) upload(w http.ResponseWriter, r request) error {
	if r.ContentLength > maxUploads {
		return answer.LargerThan(maxUploads)
	}
	body := http.MaxBytesReader(w, r.Body, maxUploads)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(uploadTimeout))
	_ = control.SetWriteDeadline(time.Now().Add(uploadTimeout + responseTimeout)) // else a slow upload gets no response
	// The deadlines above limit a slow client. This timeout limits a session that does not read the
	// files.
	ctx, cancel := context.WithTimeout(r.Context(), uploadTimeout)
	defer cancel()
	result, err := s.sessions.Read(ctx, r.conversation, live.Call{Method: http.MethodPost, Path: session.FilesPath,
		Body: body, Type: r.Header.Get("Content-Type"), Held: r.held}, live.MaxResponse)
	if err == nil {
		answer.Write(w, result, nil)
	}
	return err
}
