package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/access"
	"github.com/parley-dev/parley/cmd/facade/answer"
	"github.com/parley-dev/parley/cmd/facade/archive"
	"github.com/parley-dev/parley/cmd/facade/live"
)

const usualLimit, maxLimit = 20, live.MaxEvents

// eventRange is what a client wants of the events.
type eventRange struct {
	start, limit int
	// end is the last one wanted; negative for all.
	end     int
	reverse bool
}

func decodeRange(query url.Values) (r eventRange, err error) {
	r = eventRange{limit: usualLimit, end: -1}
	number := func(name string, target *int) {
		text := query.Get(name)
		if text == "" {
			return
		}
		n, parseErr := strconv.Atoi(text)
		if parseErr != nil || n < 0 {
			err = answer.Invalid(rest.Detail{Type: "int_parsing", Loc: rest.Location{"query", name},
				Msg: "Input should be the id of an event"})
			return
		}
		*target = n
	}
	switch strings.ToLower(query.Get("reverse")) {
	case "true", "1", "yes", "on", "t", "y":
		r.reverse = true
	case "", "false", "0", "no", "off", "f", "n":
	default:
		err = answer.Invalid(rest.Detail{Type: "bool_parsing", Loc: rest.Location{"query", "reverse"},
			Msg: "Input should be true or false"})
	}
	number("start_id", &r.start)
	number("end_id", &r.end)
	if text := query.Get("limit"); text != "" {
		n, parseErr := strconv.Atoi(text)
		if parseErr != nil || n < 1 || n > maxLimit {
			return r, answer.Refuse(http.StatusBadRequest, "Invalid limit")
		}
		r.limit = n
	}
	return r, err
}

func (r eventRange) query() url.Values {
	query := url.Values{"start_id": {strconv.Itoa(r.start)}, "limit": {strconv.Itoa(r.limit)},
		"reverse": {strconv.FormatBool(r.reverse)}}
	if r.end >= 0 {
		query.Set("end_id", strconv.Itoa(r.end))
	}
	return query
}

// isOver says that what happened in a conversation is read from the archive.
func (s *server) isOver(c *v1alpha1.Conversation) bool {
	return s.options.Archive != nil && errors.Is(live.Running(c), live.NotRunning)
}

// page of the events, of the session or of what it left. It may be shorter than its limit where
// events are large: what is left then comes with the next.
func (s *server) page(ctx context.Context, c *v1alpha1.Conversation, held *access.Held,
	r eventRange) (*session.EventPage, error) {
	if s.isOver(c) {
		return s.archivedPage(ctx, c, held, r)
	}
	return s.sessions.Page(ctx, c, live.Call{Method: http.MethodGet, Path: session.EventsPath, Query: r.query(),
		Held: held}, maxPage)
}

func (s *server) archivedPage(ctx context.Context, c *v1alpha1.Conversation, held *access.Held,
	r eventRange) (*session.EventPage, error) {
	done, err := s.turns.Take(ctx, held.User())
	if err != nil {
		return nil, err
	}
	defer done()
	page := &session.EventPage{Events: []json.RawMessage{}}
	from, size := r.start, 0
	if r.reverse { // ids have no gaps: the last ones are found without reading those before
		position, err := s.options.Archive.Position(ctx, string(c.UID))
		if err != nil && !errors.Is(err, archive.ErrNothing) {
			return nil, unavailable(ctx, err)
		}
		last := position.Next - 1
		if r.end >= 0 {
			last = min(last, r.end)
		}
		r.end, from = last, max(r.start, last-r.limit+1)
		page.HasMore = from > r.start
		if last < from {
			return page, nil
		}
	}
	var refused error
	err = s.options.Archive.Events(ctx, string(c.UID), from, func(id int, event json.RawMessage) bool {
		switch {
		case r.end >= 0 && id > r.end:
			return false
		case !r.reverse && (len(page.Events) == r.limit || len(page.Events) > 0 && size+len(event) > maxPage):
			page.HasMore = true
			return false
		}
		for ; size+len(event) > maxPage && len(page.Events) > 0; page.HasMore = true { // the last ones are wanted
			_ = held.Take(-int64(len(page.Events[0])))
			page.Events, size = page.Events[1:], size-len(page.Events[0])
		}
		if refused = held.Take(int64(len(event))); refused != nil {
			return false
		}
		page.Events, size = append(page.Events, event), size+len(event)
		return true
	})
	switch {
	case refused != nil:
		return nil, refused
	case err != nil && !errors.Is(err, archive.ErrNothing):
		return nil, unavailable(ctx, err)
	}
	if r.reverse {
		slices.Reverse(page.Events)
	}
	return page, nil
}

// ending of a conversation that is over. It is large, and who reads it keeps little of it.
func (s *server) ending(ctx context.Context, c *v1alpha1.Conversation, user string) (*session.Ending, error) {
	done, err := s.turns.Take(ctx, user)
	if err != nil {
		return nil, err
	}
	defer done()
	ending, err := s.options.Archive.Ending(ctx, string(c.UID))
	switch {
	case errors.Is(err, archive.ErrNothing):
		return nil, live.NotRunning
	case err != nil:
		return nil, unavailable(ctx, err)
	}
	return ending, nil
}

// changed is the ending of a conversation about a repository.
func (s *server) changed(ctx context.Context, c *v1alpha1.Conversation, user string) (*session.Ending, error) {
	ending, err := s.ending(ctx, c, user)
	if err == nil && !ending.Repository {
		return nil, &answer.Refusal{Code: http.StatusNotFound, Body: map[string]string{"error": "Not a git repository"}}
	}
	return ending, err
}

// usage of the model: of the session, or of what it left. A session that left nothing used nothing
// that is known of.
func (s *server) usage(ctx context.Context, r request) (any, error) {
	c, err := s.conversations.Find(ctx, r.user, r.id())
	if err != nil {
		return nil, err
	}
	if !s.isOver(c) {
		return s.sessions.Read(ctx, c, live.Call{Method: http.MethodGet, Path: session.UsagePath, Held: r.held},
			live.MaxAnswer)
	}
	ending, err := s.ending(ctx, c, r.held.User())
	switch {
	case errors.Is(err, live.NotRunning):
		return session.Usage{}, nil
	case err != nil:
		return nil, err
	}
	return session.Usage{Calls: ending.Calls, InputTokens: ending.InputTokens, OutputTokens: ending.OutputTokens,
		Cost: ending.Cost}, nil
}

// change to a file, as clients list it.
type change struct {
	Status string `json:"status"`
	Path   string `json:"path"`
}

func (s *server) changes(ctx context.Context, r request) (any, error) {
	c, err := s.conversations.Find(ctx, r.user, r.id())
	if err != nil {
		return nil, err
	}
	if !s.isOver(c) {
		return s.sessions.Read(ctx, c, live.Call{Method: http.MethodGet, Path: session.ChangesPath, Held: r.held},
			live.MaxAnswer)
	}
	ending, err := s.changed(ctx, c, r.held.User())
	if err != nil {
		return nil, err
	}
	list, size := []change{}, 0
	for _, file := range ending.Changes {
		list, size = append(list, change{file.Status, file.Path}), size+len(file.Status)+len(file.Path)
	}
	return list, r.held.Take(int64(size))
}

func (s *server) diff(ctx context.Context, r request) (any, error) {
	c, err := s.conversations.Find(ctx, r.user, r.id())
	if err != nil {
		return nil, err
	}
	path := r.URL.Query().Get("path")
	if !s.isOver(c) {
		return s.sessions.Read(ctx, c, live.Call{Method: http.MethodGet, Path: session.DiffPath,
			Query: url.Values{"path": {path}}, Held: r.held}, live.MaxAnswer)
	}
	ending, err := s.changed(ctx, c, r.held.User())
	if err != nil {
		return nil, err
	}
	for _, file := range ending.Changes {
		if file.Path == path && file.Diff == nil {
			return nil, answer.Refuse(http.StatusUnsupportedMediaType, "the file is binary or was too large to be kept")
		}
		if file.Path == path {
			return file.Diff, r.held.Take(int64(len(file.Diff.Original) + len(file.Diff.Modified)))
		}
	}
	return nil, answer.Refuse(http.StatusNotFound, "path: there is no such file among the changes")
}

// patch is the whole difference as text.
func (s *server) patch(w http.ResponseWriter, r request) error {
	c, err := s.conversations.Find(r.Context(), r.user, r.id())
	if err != nil {
		return err
	}
	done, err := s.streams.Take(r.held.User()) // it takes as long as a stream may
	if err != nil {
		return err
	}
	defer done()
	var text io.Reader
	if s.isOver(c) {
		ending, err := s.changed(r.Context(), c, r.held.User())
		if err == nil {
			err = r.held.Take(int64(len(ending.Patch)))
		}
		if err != nil {
			return err
		}
		text = strings.NewReader(ending.Patch)
	} else {
		response, err := s.sessions.Ask(r.Context(), c, live.Call{Method: http.MethodGet, Path: session.PatchPath})
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		text = io.LimitReader(response.Body, session.MaxPatch+1<<10)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, err := io.Copy(newPatientWriter(w), text); err != nil {
		panic(http.ErrAbortHandler) // who reads it must see that it is not whole
	}
	return nil
}
