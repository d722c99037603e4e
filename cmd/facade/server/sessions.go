package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/access"
	"github.com/parley-dev/parley/cmd/facade/answer"
	"github.com/parley-dev/parley/cmd/facade/live"
)

const (
	// maxPage is how large a page of events becomes; an event that is larger comes alone.
	maxPage = 4 << 20
	// maxUploads bounds what a user sends into a session at once.
	maxUploads = 64 << 20
)

// sessionOperations are those on what a conversation does, made and says.
func (s *server) sessionOperations() map[string]map[string]operation {
	ask := func(path string, names ...string) map[string]operation {
		return map[string]operation{"GET": {do: func(ctx context.Context, r request) (any, error) {
			return s.ask(ctx, r, path,
				names...)
		}}}
	}
	fixed := func(body any) map[string]operation {
		return map[string]operation{"GET": {do: func(ctx context.Context, r request) (any, error) {
			_, err := s.conversations.Find(ctx, r.user, r.id())
			return body, err
		}}}
	}
	return map[string]map[string]operation{
		"/events": {
			"GET":  {do: s.events},
			"POST": {do: func(ctx context.Context, r request) (any, error) { return s.send(ctx, r, r.body) }, readsBody: true},
		},
		"/events/stream": {"GET": {serve: s.stream}},
		"/message":       {"POST": {do: s.message, readsBody: true}},
		"/trajectory":    {"GET": {serve: s.trajectory}},
		"/list-files":    ask(session.FilesPath, "path", "path"),
		"/select-file":   {"GET": {do: s.file}},
		"/zip-directory": {"GET": {serve: s.zip}},
		"/upload-files":  {"POST": {serve: s.upload}},
		"/git/changes":   {"GET": {do: s.changes}},
		"/git/diff":      {"GET": {do: s.diff}},
		"/git/patch":     {"GET": {serve: s.patch}},
		"/usage":         {"GET": {do: s.usage}},
		"/config":        {"GET": {do: s.config}},
		"/vscode-url":    fixed(map[string]any{"vscode_url": nil}),
		"/web-hosts":     fixed(map[string]any{"hosts": map[string]string{}}),
		"/microagents":   fixed(map[string]any{"microagents": []string{}}),
	}
}

// ask the session of a conversation. names are the query's in turn: the client's, and the
// session's.
func (s *server) ask(ctx context.Context, r request, path string, names ...string) (any, error) {
	c, err := s.conversations.Find(ctx, r.user, r.id())
	if err != nil {
		return nil, err
	}
	query := url.Values{}
	for i := 0; i < len(names); i += 2 {
		query.Set(names[i+1], r.URL.Query().Get(names[i]))
	}
	return s.sessions.Read(ctx, c, live.Call{Method: http.MethodGet, Path: path, Query: query, Held: r.held},
		live.MaxAnswer)
}

// file of a session. That none is named is said here: a session knows the parameter by another name.
func (s *server) file(ctx context.Context, r request) (any, error) {
	if r.URL.Query().Get("file") != "" {
		return s.ask(ctx, r, session.FilePath, "file", "path")
	}
	if _, err := s.conversations.Find(ctx, r.user, r.id()); err != nil {
		return nil, err
	}
	return nil, answer.Invalid(rest.Detail{Type: "missing", Loc: rest.Location{"query", "file"}, Msg: "Field required"})
}

// events by range.
func (s *server) events(ctx context.Context, r request) (any, error) {
	c, err := s.conversations.Find(ctx, r.user, r.id())
	if err != nil {
		return nil, err
	}
	wanted, err := decodeRange(r.URL.Query())
	if err != nil {
		return nil, err
	}
	page, err := s.page(ctx, c, r.held, wanted)
	if err != nil {
		return nil, err
	}
	return textOf(page), nil
}

// textOf a page. An encoder would hold its events twice more.
func textOf(page *session.EventPage) json.RawMessage {
	const begin, end = `{"events":[`, `],"has_more":`
	size := len(begin) + len(end) + len("false}\n")
	for _, event := range page.Events {
		size += len(event) + 1
	}
	text := append(make([]byte, 0, size), begin...)
	for i, event := range page.Events {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, event...)
	}
	return append(strconv.AppendBool(append(text, end...), page.HasMore), "}\n"...)
}

// message is the short way to say something.
func (s *server) message(ctx context.Context, r request) (any, error) {
	message, details := rest.DecodeMessage(r.body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	body, err := json.Marshal(map[string]any{"action": session.ActionMessage, "args": map[string]any{"content": message,
		"image_urls": []string{}}})
	if err != nil {
		return nil, err
	}
	return s.send(ctx, r, body)
}

// send an event of a user to the session. What is answered with success is on its disk.
func (s *server) send(ctx context.Context, r request, body []byte) (any, error) {
	c, err := s.conversations.Find(ctx, r.user, r.id())
	if err != nil {
		return nil, err
	}
	key := r.Header.Get(session.IdempotencyHeader)
	if len(key) > session.MaxIdempotencyKey {
		return nil, answer.Invalid(rest.LongKey)
	}
	return s.sendTo(ctx, c, r.held, body, key)
}

func (s *server) config(ctx context.Context, r request) (any, error) {
	c, err := s.conversations.Find(ctx, r.user, r.id())
	if err != nil {
		return nil, err
	}
	return map[string]string{"runtime_id": string(c.UID), "session_id": c.Name}, nil
}

func (s *server) zip(w http.ResponseWriter, r request) error {
	c, err := s.conversations.Find(r.Context(), r.user, r.id())
	if err != nil {
		return err
	}
	done, err := s.streams.Take(string(r.user.UID)) // it takes as long as a stream may
	if err != nil {
		return err
	}
	defer done()
	response, err := s.sessions.Ask(r.Context(), c, live.Call{Method: http.MethodGet, Path: session.ZipPath})
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	w.Header().Set("Content-Type", "application/zip")
	w.Header().Set("Content-Disposition", "attachment; filename=workspace.zip")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, err := io.Copy(newPatientWriter(w), response.Body); err != nil {
		panic(http.ErrAbortHandler) // who reads it must see that it is not whole
	}
	return nil
}

// upload passes files of a user on as they come.
func (s *server) upload(w http.ResponseWriter, r request) error {
	c, err := s.conversations.Find(r.Context(), r.user, r.id())
	if err != nil {
		return err
	}
	if r.ContentLength > maxUploads {
		return answer.LargerThan(maxUploads)
	}
	done, err := s.streams.Take(string(r.user.UID))
	if err != nil {
		return err
	}
	defer done()
	body := http.MaxBytesReader(w, r.Body, maxUploads)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(uploadTimeout))
	_ = control.SetWriteDeadline(time.Now().Add(uploadTimeout + answerTimeout)) // else who takes long gets no answer
	// A session that does not take the files ends it too: nobody reads from the client then.
	ctx, cancel := context.WithTimeout(r.Context(), uploadTimeout)
	defer cancel()
	result, err := s.sessions.Read(ctx, c, live.Call{Method: http.MethodPost, Path: session.FilesPath, Body: body,
		Type: r.Header.Get("Content-Type"), Held: r.held}, live.MaxAnswer)
	if err != nil {
		return err
	}
	answer.Write(w, result, nil)
	return nil
}

func (s *server) sendTo(ctx context.Context, c *v1alpha1.Conversation, held *access.Held, body []byte, key string) (any,
	error) {
	call := live.Call{Method: http.MethodPost, Path: session.EventsPath, Body: bytes.NewReader(body),
		Type: "application/json", Key: key, Held: held}
	return s.sessions.Read(ctx, c, call, live.MaxAnswer)
}
