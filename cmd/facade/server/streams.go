package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/access"
	"github.com/parley-dev/parley/cmd/facade/answer"
	"github.com/parley-dev/parley/cmd/facade/archive"
	"github.com/parley-dev/parley/cmd/facade/live"
)

const (
	// writeTimeout is how long a client may take for each piece that it is sent.
	writeTimeout = 30 * time.Second
	// uploadTimeout bounds how long a user may take to send files.
	uploadTimeout = 10 * time.Minute
	// checkEvery is how often it is looked whether who follows a stream still may.
	checkEvery = 15 * time.Second
)

// patientWriter gives each piece its time, and sends it at once.
type patientWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func newPatientWriter(w http.ResponseWriter) *patientWriter {
	return &patientWriter{w, http.NewResponseController(w)}
}

func (p *patientWriter) Write(data []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	n, err := p.w.Write(data)
	if err == nil {
		err = p.control.Flush()
	}
	return n, err
}

// errGone ends a stream of somebody who may no longer follow it.
var errGone = errors.New("the key or the conversation is gone")

// following is the time in which a user may follow a conversation: until the client goes, the
// facade stops, the key is no longer the user's or the cookie's time is over, or the conversation
// is gone. release must be called.
func (s *server) following(r *http.Request, u *access.User, shown access.Credential, c *v1alpha1.Conversation) (
	ctx context.Context, release func(), err error) {
	done, err := s.streams.Take(string(u.UID))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(s.serving, func() { cancel(context.Canceled) })
	go func() {
		tick := time.NewTicker(checkEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now, err := access.Authenticate(ctx, s.cluster, shown)
			if errors.Is(err, answer.Unauthorized) || err == nil && now.UID != u.UID {
				cancel(errGone)
			}
			switch found, err := s.conversations.Find(ctx, u, c.Name); {
			case err == nil && found.UID != c.UID, answer.CodeOf(err) == http.StatusNotFound:
				cancel(errGone)
			}
		}
	}()
	return ctx, func() { stop(); cancel(nil); done() }, nil
}

// stream is the events as they come, as Server-Sent Events.
func (s *server) stream(w http.ResponseWriter, r request) error {
	after, err := lastEvent(r.Request)
	if err != nil {
		return err
	}
	c, err := s.conversations.Find(r.Context(), r.user, r.id())
	if err != nil {
		return err
	}
	ctx, release, err := s.following(r.Request, r.user, r.shown, c)
	if err != nil {
		return err
	}
	defer release()
	out := newPatientWriter(w)
	_ = out.control.SetReadDeadline(time.Time{})
	begun := false
	begin := func() {
		if begun {
			return
		}
		begun = true
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Accel-Buffering", "no") // of proxies that would keep it until it is whole
		w.WriteHeader(http.StatusOK)
	}
	send := func(e live.Event) error {
		begin()
		_, err := fmt.Fprintf(out, "id: %d\ndata: %s\n\n", e.ID, e.Data)
		return err
	}
	if s.isOver(c) {
		if err := s.archivedEvents(ctx, c, r.held, after, send); err != nil {
			return err
		}
		begin()
		return nil
	}
	after = s.goesOn(ctx, c, r.held, after)
	err = s.sessions.Follow(ctx, c, after, r.held, send, func() error {
		begin()
		_, err := io.WriteString(out, ": alive\n\n")
		return err
	})
	if begun {
		return nil // it ended, and whoever comes back says what it has
	}
	return err
}

// goesOn is after which event a client that has one goes on. Where the session does not have that
// one, its journal began anew, and the client has nothing of it. It is asked only for whether it has
// it: an error is told when the events are asked for.
func (s *server) goesOn(ctx context.Context, c *v1alpha1.Conversation, held *access.Held, after int) int {
	if after < 0 {
		return after
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	defer held.Release()
	if page, err := s.page(ctx, c, held, eventRange{start: after, end: after, limit: 1}); err == nil &&
		len(page.Events) == 0 {
		return -1
	}
	return after
}

// lastEvent is the one that a client has; -1 for none.
func lastEvent(r *http.Request) (int, error) {
	loc, text := rest.Location{"header", "last-event-id"}, r.Header.Get("Last-Event-ID")
	if text == "" {
		loc, text = rest.Location{"query", "after"}, r.URL.Query().Get("after")
	}
	if text == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 {
		return 0, answer.Invalid(rest.Detail{Type: "int_parsing", Loc: loc, Msg: "Input should be the id of an event"})
	}
	return n, nil
}

// trajectory is all events in one answer, which is never held as a whole.
func (s *server) trajectory(w http.ResponseWriter, r request) error {
	c, err := s.conversations.Find(r.Context(), r.user, r.id())
	if err != nil {
		return err
	}
	done, err := s.streams.Take(r.held.User()) // it takes as long as a stream may
	if err != nil {
		return err
	}
	defer done()
	out := bufio.NewWriterSize(newPatientWriter(w), 32<<10)
	if text := r.URL.Query().Get("earlier"); text != "" {
		return s.earlierTrajectory(r, w, out, c, text)
	}
	if s.isOver(c) {
		return s.archivedTrajectory(w, out, func(send func(live.Event) error) error {
			return s.archivedEvents(r.Context(), c, r.held, -1, send)
		})
	}
	for next, first := 0, true; ; first = false {
		page, err := s.nextPage(r.Context(), c, r.held, next)
		if err != nil {
			if first {
				return err
			}
			panic(http.ErrAbortHandler) // who reads it must see that it is not whole
		}
		if first {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			_, _ = out.WriteString(`{"trajectory":[`)
		}
		for i, event := range page.Events {
			if next+i > 0 {
				_ = out.WriteByte(',')
			}
			if _, err := out.Write(event); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
		next += len(page.Events)
		if !page.HasMore || len(page.Events) == 0 {
			_, _ = out.WriteString("]}\n")
			if out.Flush() != nil {
				panic(http.ErrAbortHandler)
			}
			return nil
		}
	}
}

// nextPage of many that are read one after the other, instead of the one before. Who waits for room
// holds nothing meanwhile.
func (s *server) nextPage(ctx context.Context, c *v1alpha1.Conversation, held *access.Held,
	start int) (page *session.EventPage, err error) {
	err = access.Patiently(ctx, func() (err error) {
		held.Release()
		page, err = s.page(ctx, c, held, eventRange{start: start, end: -1, limit: maxLimit})
		return err
	})
	return page, err
}

// archivedEvents are those that a session left, after one. An error is returned only if none was
// sent.
func (s *server) archivedEvents(ctx context.Context, c *v1alpha1.Conversation, held *access.Held, after int,
	send func(live.Event) error) error {
	return s.sent(ctx, held, after+1, send, func(from int, visit func(id int, event json.RawMessage) bool) error {
		err := s.options.Archive.Events(ctx, string(c.UID), from, visit)
		if errors.Is(err, archive.ErrNothing) {
			return nil
		}
		return err
	})
}

// earlierTrajectory is that of a journal which the session could not go on from: 1 is the last of
// them.
func (s *server) earlierTrajectory(r request, w http.ResponseWriter, out *bufio.Writer, c *v1alpha1.Conversation,
	text string) error {
	number, err := strconv.Atoi(text)
	if err != nil || number < 1 {
		return answer.Invalid(rest.Detail{Type: "int_parsing", Loc: rest.Location{"query", "earlier"},
			Msg: "Input should be a number from 1 on"})
	}
	if s.options.Archive == nil {
		return answer.NotFound
	}
	return s.archivedTrajectory(w, out, func(send func(live.Event) error) error {
		return s.sent(r.Context(), r.held, 0, send, func(from int, visit func(id int, event json.RawMessage) bool) error {
			return s.options.Archive.Earlier(r.Context(), string(c.UID), number, from, visit)
		})
	})
}

// errGap says that an event which was there is there no more.
var errGap = errors.New("what was kept has changed meanwhile")

// sent events from one on, as they are read. They are read in turns, and sent between them, however
// long a client takes. What is read is counted before its turn is over: who finds no room lets go
// of it, waits with nothing, and reads it again when there is room. An error is returned only if
// none was sent.
func (s *server) sent(ctx context.Context, held *access.Held, from int, send func(live.Event) error,
	read reading) error {
	reader := &turnReader{server: s, ctx: ctx, held: held, next: from, send: send}
	err := reader.run(read)
	switch {
	case reader.begun && err != nil:
		panic(http.ErrAbortHandler) // who reads it must see that it is not whole
	case errors.Is(err, archive.ErrNothing):
		return answer.NotFound
	case err != nil && reader.refused == nil:
		return unavailable(ctx, err)
	}
	return err
}

// reading visits events from one on, until visit returns false.
type reading func(from int, visit func(id int, event json.RawMessage) bool) error

// turnReader reads events in turns.
type turnReader struct {
	*server
	ctx  context.Context
	held *access.Held
	send func(live.Event) error
	// done ends the turn; nil between turns.
	done func()
	// next is the event to be sent, and begun whether one was.
	next  int
	begun bool
	// full is how large the next event is, where there is no room for it, and refused why it was
	// not sent.
	full    int64
	refused error
}

func (t *turnReader) run(read reading) error {
	defer t.end()
	for {
		waited := t.full > 0
		t.full = 0
		if t.refused = t.begin(); t.refused != nil {
			return t.refused
		}
		before := t.next
		err := read(t.next, t.visit)
		t.end()
		switch {
		case t.refused != nil && (t.full == 0 || !t.begun): // who was sent nothing yet is told so at once
			return t.refused
		case t.refused == nil && err == nil && waited && t.next == before:
			return errGap
		case t.refused == nil:
			return err
		}
		size := t.full
		if t.refused = access.Patiently(t.ctx, func() error { return t.held.Grow(size) }); t.refused != nil {
			return t.refused
		}
	}
}

// visit an event that was read in a turn: send it between that and the next.
func (t *turnReader) visit(id int, event json.RawMessage) bool {
	t.next = id
	if t.refused = t.held.Grow(int64(len(event))); t.refused != nil {
		t.full = int64(len(event))
		t.held.Release()
		return false
	}
	t.end()
	t.begun = true
	if t.refused = t.send(live.Event{ID: id, Data: event}); t.refused != nil {
		return false
	}
	t.next++
	t.held.Release()
	t.refused = t.begin()
	return t.refused == nil
}

func (t *turnReader) begin() (err error) {
	t.done, err = t.turns.Take(t.ctx, t.held.User())
	return err
}

func (t *turnReader) end() {
	if t.done != nil {
		t.done()
		t.done = nil
	}
}

func (s *server) archivedTrajectory(w http.ResponseWriter, out *bufio.Writer,
	read func(send func(live.Event) error) error) error {
	begun := false
	begin := func() {
		if begun {
			return
		}
		begun = true
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = out.WriteString(`{"trajectory":[`)
	}
	err := read(func(e live.Event) error {
		begin()
		if e.ID > 0 {
			_ = out.WriteByte(',')
		}
		_, err := out.Write(e.Data)
		return err
	})
	if err != nil {
		return err
	}
	begin()
	_, _ = out.WriteString("]}\n")
	if out.Flush() != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// unavailable says that the archive cannot be read now.
func unavailable(ctx context.Context, err error) error {
	logf.FromContext(ctx).Error(err, "The archive cannot be read")
	return answer.Later(http.StatusServiceUnavailable, "What the session left cannot be read now; try again",
		2*time.Second)
}
