package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/coder/websocket"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/access"
	"github.com/parley-dev/parley/cmd/facade/answer"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/facade/socket"
)

// socketIO serves a client of the existing service that watches a conversation.
func (s *server) socketIO(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("transport") != "websocket" || query.Get("EIO") != "4" {
		answer.Write(w, nil, &answer.Refusal{Code: http.StatusBadRequest, Body: map[string]any{"code": 0,
			"message": "Only the websocket transport of Engine.IO 4 is served"}})
		return
	}
	key := cmp.Or(r.Header.Get(rest.KeyHeader), query.Get("session_api_key"))
	u, shown, err := s.identify(r, key, true)
	if err == nil {
		observationOf(r).user = u.Key()
		err = s.limits.Take(string(u.UID))
	}
	var after int
	if err == nil {
		after, err = socketPosition(query)
	}
	var c *v1alpha1.Conversation
	if err == nil {
		c, err = s.conversations.Find(r.Context(), u, query.Get("conversation_id"))
	}
	if err != nil {
		answer.Write(w, nil, err)
		return
	}
	ctx, release, err := s.following(r, u, shown, c)
	if err != nil {
		answer.Write(w, nil, err)
		return
	}
	defer release()
	// Origin is checked: against the host that was asked for, and the origins whose pages may call.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		OriginPatterns: s.options.CORSOrigins, InsecureSkipVerify: slices.Contains(s.options.CORSOrigins, "*"),
	})
	if err != nil {
		return // it is answered
	}
	watched := &watched{server: s, user: u, conversation: c}
	if !s.isOver(c) {
		after = s.goesOn(ctx, c, s.answers.For(string(u.UID)), after)
	}
	socket.Serve(ctx, conn, watched, after, told(live.Running(c)))
}

// socketPosition is the last event that the client has.
func socketPosition(query url.Values) (int, error) {
	text := query.Get("latest_event_id")
	if text == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 {
		return 0, answer.Invalid(rest.Detail{Type: "int_parsing", Loc: rest.Location{"query", "latest_event_id"},
			Msg: "Input should be the id of an event"})
	}
	return n, nil
}

// watched is a conversation at the end of a socket.
type watched struct {
	*server
	user         *access.User
	conversation *v1alpha1.Conversation
}

func (w *watched) Backlog(ctx context.Context, after int, visit func(socket.Event) error) error {
	held := w.answers.For(string(w.user.UID))
	defer held.Release()
	for next := after + 1; ; {
		page, err := w.nextPage(ctx, w.conversation, held, next)
		if err != nil {
			return err
		}
		for i, data := range page.Events {
			if err := visit(socket.Event{ID: next + i, Data: data}); err != nil {
				return err
			}
		}
		if next += len(page.Events); !page.HasMore || len(page.Events) == 0 {
			return nil
		}
	}
}

func (w *watched) Follow(ctx context.Context, after int, visit func(socket.Event) error) error {
	held := w.answers.For(string(w.user.UID))
	return w.sessions.Follow(ctx, w.conversation, after, held, func(e live.Event) error { return visit(socket.Event(e)) },
		func() error { return nil })
}

// Count what the user sends as one of their requests.
func (w *watched) Count() error { return told(w.limits.Take(string(w.user.UID))) }

// Receive what the user sends, within what may be under way of bodies.
func (w *watched) Receive(ctx context.Context, from io.Reader) (frame []byte, done func(), err error) {
	frame, done, err = w.bodies.ReadFrame(ctx, from, string(w.user.UID))
	return frame, done, told(err)
}

// Send what the user does.
func (w *watched) Send(ctx context.Context, action json.RawMessage) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	held := w.answers.For(string(w.user.UID))
	defer held.Release()
	_, err := w.sendTo(ctx, w.conversation, held, action, "")
	return told(err)
}

// told is an error in the words that a user is answered with.
func told(err error) error {
	if err == nil {
		return nil
	}
	var refusal *answer.Refusal
	if errors.As(err, &refusal) {
		if body, is := refusal.Body.(map[string]any); is {
			if detail, is := body["detail"].(string); is {
				return errors.New(detail)
			}
		}
	}
	return errors.New("it could not be done; try again")
}
