package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/coder/websocket"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/facade/socket"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

// maxStrangers limits the sockets of clients that have not authenticated yet.
const maxStrangers = 1000

// socketIO serves a client of Socket.IO that watches a conversation. The client authenticates with
// its request or with its first frame. The first frame is better, because the logs of proxies may
// contain a key in the URL of the request.
func (s *server) socketIO(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("transport") != "websocket" || query.Get("EIO") != "4" {
		answer.Write(w, nil, &answer.Refusal{Code: http.StatusBadRequest, Body: map[string]any{"code": 0,
			"message": "Only the websocket transport of Engine.IO 4 is supported"}})
		return
	}
	after, err := -1, error(nil) // the last event that the client has
	if text := query.Get("latest_event_id"); text != "" {
		after, err = eventID(text, -1, "query", "latest_event_id")
	}
	key := cmp.Or(r.Header.Get(rest.KeyHeader), query.Get("session_api_key"))
	_, signedIn := s.cookies.Credential(r)
	var watching *watched
	greeted := func() {}
	switch {
	case err != nil:
	case key == "" && !signedIn && auth.BearerOf(r) == "":
		greeted, err = s.strangers.Take("", limits.Streams)
	default:
		if watching, err = s.watch(r, key); err == nil {
			defer watching.end()
		}
	}
	if err != nil {
		answer.Write(w, nil, err)
		return
	}
	// Accept checks Origin against the request's host and the configured origins.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		OriginPatterns: s.options.CORSOrigins, InsecureSkipVerify: slices.Contains(s.options.CORSOrigins, "*"),
	})
	if err != nil {
		greeted()
		return // Accept answered the request
	}
	client, greeting, err := socket.Greet(r.Context(), conn)
	greeted()
	if err != nil {
		return
	}
	if watching == nil {
		var given struct {
			Key string `json:"session_api_key"`
		}
		_ = json.Unmarshal([]byte(greeting), &given) // without a key, watch returns Unauthorized
		if watching, err = s.watch(r, given.Key); err != nil {
			client.Refuse(r.Context(), userMessage(err))
			return
		}
		defer watching.end()
	}
	if watching.conversation.DeletionTimestamp != nil {
		client.Refuse(watching.ctx, userMessage(beingDeleted))
		return
	}
	client.Serve(watching.ctx, watching, s.resumeAfter(watching.ctx, watching.conversation, watching.hold(), after))
}

// watch authenticates the client of a socket, by its key or, if the key is empty, by the cookie or
// the token of the request. It then opens the requested conversation, which must belong to the
// user.
func (s *server) watch(r *http.Request, key string) (*watched, error) {
	u, credential, err := s.identify(r, key, true)
	if err == nil {
		err = s.admit(r, u, 1)
	}
	if err != nil {
		return nil, err
	}
	c, err := s.conversations.Find(r.Context(), u, r.URL.Query().Get("conversation_id"))
	if err != nil {
		return nil, err
	}
	done, err := s.budget.Take(u.ID(), limits.Streams)
	if err != nil {
		return nil, err
	}
	ctx, release := s.following(r, u, credential, c)
	return &watched{server: s, request: r, user: u, conversation: c, ctx: ctx, end: func() { release(); done() }}, nil
}

// checkEvery is the interval at which a stream checks that its user still has access.
const checkEvery = 15 * time.Second

// errGone ends a stream whose user lost access.
var errGone = errors.New("the credential has become invalid, or the conversation was deleted")

// following returns a context for a user's stream. The context ends when the client disconnects,
// the facade stops, the credential becomes invalid, the settings get another owner or the
// conversation is deleted. The caller must call release at the end of the stream.
func (s *server) following(r *http.Request, u *auth.User, credential auth.Credential, c *v1alpha1.Conversation) (
	ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(s.serving, func() { cancel(context.Canceled) })
	if credential.Username != "" {
		credential.Settings = u.Key() // the stream keeps its UserSettings object, even if the person gets another one
	}
	var expired <-chan time.Time
	if !credential.Expires.IsZero() {
		expired = time.After(time.Until(credential.Expires))
	}
	go func() {
		tick := time.NewTicker(checkEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-expired:
				cancel(errGone)
				return
			case <-tick.C:
			}
			if s.lostAccess(ctx, u, credential, c) {
				cancel(errGone)
			}
		}
	}()
	return ctx, func() { stop(); cancel(nil) }
}

func (s *server) lostAccess(ctx context.Context, u *auth.User, credential auth.Credential,
	c *v1alpha1.Conversation) bool {
	if credential.Token != "" {
		again, err := s.tokens.Credential(ctx, credential.Token, "")
		if errors.Is(err, answer.Unauthorized) {
			return true
		}
		if err == nil {
			credential.Groups = again.Groups
		}
	}
	now, err := auth.Authenticate(ctx, s.cluster, credential)
	code := answer.CodeOf(err)
	if err != nil && (code == http.StatusUnauthorized || code == http.StatusForbidden) || err == nil && now.UID != u.UID {
		return true
	}
	if err == nil {
		u = now // use the current settings, which may have another owner
	}
	found, err := s.conversations.Find(ctx, u, c.Name)
	return err == nil && found.UID != c.UID || err != nil && answer.CodeOf(err) == http.StatusNotFound
}

// watched is the conversation of a socket.
type watched struct {
	*server
	request      *http.Request
	user         *auth.User
	conversation *v1alpha1.Conversation
	// ctx is canceled when the user loses access. end() must be called when the socket is closed.
	ctx context.Context
	end func()
}

func (w *watched) hold() *limits.Hold { return w.budget.Hold(w.user.ID(), limits.Responses) }

// Backlog visits the existing events. It reads them from the running session or, after its end,
// from the archive. If neither can be read yet, it visits none.
func (w *watched) Backlog(ctx context.Context, after int, visit func(live.Event) error) error {
	if live.Running(w.conversation) != nil && !w.isOver(w.conversation) {
		return nil // Follow visits the events as soon as the session runs
	}
	_, err := visitEvents(ctx, w.hold(), w.pages(w.conversation), after+1, true, visit)
	return err
}

// Follow visits the session's events after the given ID. It does not end when the session stops,
// because a message of the client may start the session again.
func (w *watched) Follow(ctx context.Context, after int, visit func(live.Event) error) error {
	changed, stop := w.cluster.WatchConversation(nameOf(w.conversation))
	defer stop()
	attempt := w.conversation.Status.Attempt // the last attempt whose journal was checked
	reads := lastReads
	var failed error
	visitNext := func(e live.Event) error {
		after = e.ID
		failed = visit(e)
		return failed
	}
	for c := w.conversation; ; {
		runs := live.Running(c) == nil
		if runs {
			reads = lastReads
		}
		if readable := runs || w.isOver(c) && reads > 0; readable && attempt != c.Status.Attempt {
			if resumed, err := w.findAfter(ctx, c, w.hold(), after); err == nil {
				attempt, after = c.Status.Attempt, resumed
			}
		}
		switch {
		case attempt != c.Status.Attempt: // the journal of this attempt is not checked yet; try again later
		case runs:
			_ = w.sessions.Follow(ctx, c, after, false, w.hold(), visitNext, func() error { return nil })
		case w.isOver(c) && reads > 0:
			reads--
			_, _ = visitEvents(ctx, w.hold(), w.pages(c), after+1, true, visitNext)
		}
		if failed != nil || ctx.Err() != nil {
			return cmp.Or(failed, context.Cause(ctx))
		}
		select {
		case <-changed:
		case <-time.After(followPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if now, err := w.conversations.Find(ctx, w.user, c.Name); err == nil && now.UID == c.UID {
			c = now
		}
	}
}

const (
	// followPause is the longest delay before a socket tries again to read events of its session.
	followPause = 2 * time.Second
	// lastReads is the number of times that a socket reads the archive after the end of its
	// session. The last events may reach the archive late.
	lastReads = 5
)

// Count counts an action of the user as a request.
func (w *watched) Count() error { return userMessage(w.budget.Count(w.user.ID(), 1)) }

// Receive reads a frame and counts it towards the limits on bodies.
func (w *watched) Receive(ctx context.Context, from io.Reader) (frame []byte, done func(), err error) {
	frame, done, err = w.budget.ReadFrame(ctx, from, w.user.ID())
	return frame, done, userMessage(err)
}

// Send sends an action of the user.
func (w *watched) Send(ctx context.Context, action json.RawMessage, free func()) error {
	hold := w.hold()
	defer hold.Release()
	c, err := w.conversations.Find(ctx, w.user, w.conversation.Name)
	switch {
	case err != nil:
	case c.UID != w.conversation.UID:
		err = answer.NotFound
	case isMessage(action):
		_, err = w.sendMessage(ctx, c, message{user: w.user, body: action, held: hold, free: free})
	default:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		defer cancel()
		_, err = w.sendEvent(ctx, c, hold, action, "")
	}
	w.auditAction(w.request, w.conversation.Name, action, err)
	return userMessage(err)
}

// userMessage returns an error for the client, with the text of a refusal, or with a general text
// for any other error.
func userMessage(err error) error {
	if err == nil {
		return nil
	}
	if refusal, is := errors.AsType[*answer.Refusal](err); is {
		if body, is := refusal.Body.(map[string]any); is {
			if detail, is := body["detail"].(string); is {
				return errors.New(detail)
			}
		}
	}
	return errors.New("the request failed; retry later")
}
