package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
	"github.com/parley-dev/parley/cmd/facade/live"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

const (
	// defaultLimit and maxLimit are the default and the largest number of events on a page.
	defaultLimit, maxLimit = 20, live.MaxEvents
	// archivedLimit is the largest number of events that one read of the archive returns.
	archivedLimit = 1000
	// maxPage limits the bytes of a page. A larger event is sent alone.
	maxPage = 4 << 20
)

type eventRange struct {
	start, limit int
	// end is the ID of the last requested event; negative if there is no end.
	end     int
	reverse bool
}

func decodeRange(query url.Values) (r eventRange, err error) {
	r = eventRange{limit: defaultLimit, end: -1}
	r.reverse, err = truth(query, "reverse")
	for name, target := range map[string]*int{"start_id": &r.start, "end_id": &r.end} {
		if text := query.Get(name); text != "" {
			var parseErr error
			if *target, parseErr = eventID(text, 0, "query", name); parseErr != nil {
				err = parseErr
			}
		}
	}
	if text := query.Get("limit"); text != "" {
		n, parseErr := strconv.Atoi(text)
		if parseErr != nil || n < 1 || n > maxLimit {
			return r, answer.Refuse(http.StatusBadRequest, "Invalid limit")
		}
		r.limit = n
	}
	return r, err
}

func truth(query url.Values, name string) (bool, error) {
	is, known := rest.Truth(query.Get(name))
	if query.Get(name) != "" && !known {
		return false, answer.Invalid(rest.Detail{Type: "bool_parsing", Loc: rest.Location{"query", name},
			Msg: "Input should be true or false"})
	}
	return is, nil
}

// eventID parses the ID of an event. An ID below the given minimum is invalid.
func eventID(text string, least int, loc ...any) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least {
		return 0, answer.Invalid(rest.Detail{Type: "int_parsing", Loc: loc, Msg: "Input should be the id of an event"})
	}
	return n, nil
}

func (r eventRange) query() url.Values {
	query := url.Values{"start_id": {strconv.Itoa(r.start)}, "limit": {strconv.Itoa(min(r.limit, maxLimit))},
		"reverse": {strconv.FormatBool(r.reverse)}}
	if r.end >= 0 {
		query.Set("end_id", strconv.Itoa(r.end))
	}
	return query
}

// pager reads a page of events. The bytes of the page count towards the memory limits on responses.
// If events are large, the page may have fewer events than r.limit.
type pager func(ctx context.Context, hold *limits.Hold, r eventRange) (*session.EventPage, error)

// pages returns a pager that reads from the session while it runs, else from the archive.
func (s *server) pages(c *v1alpha1.Conversation) pager {
	if s.isOver(c) {
		return s.archivedPages(string(c.UID), 0)
	}
	return func(ctx context.Context, hold *limits.Hold, r eventRange) (*session.EventPage, error) {
		return s.sessions.Page(ctx, c, live.Call{Path: session.EventsPath, Query: r.query(), Held: hold}, maxPage)
	}
}

// earlierPages returns a pager for an earlier journal, which the session could not resume. number
// counts back from the current journal: 1 is the journal just before it.
func (s *server) earlierPages(c *v1alpha1.Conversation, number string) (pager, error) {
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 {
		return nil, answer.Invalid(rest.Detail{Type: "int_parsing", Loc: rest.Location{"query", "earlier"},
			Msg: "Input should be a number of at least 1"})
	}
	if s.options.Archive == nil {
		return nil, answer.NotFound
	}
	return s.archivedPages(string(c.UID), n), nil
}

// archivedPages returns a pager for an archived journal. The argument earlier selects the journal:
// 0 is the current journal, 1 the journal before it, and so on.
func (s *server) archivedPages(uid string, earlier int) pager {
	return func(ctx context.Context, hold *limits.Hold, r eventRange) (*session.EventPage, error) {
		// If earlier reads exceeded the user's rate, wait here, before this read occupies one of the few
		// ArchiveReads.
		if err := hold.Pace(ctx, 1); err != nil {
			return nil, err
		}
		done, err := s.budget.Wait(ctx, hold.User(), limits.ArchiveReads)
		if err != nil {
			return nil, err
		}
		defer done()
		page := &archivedPage{eventRange: r, hold: hold}
		defer func() { hold.Charge(page.read) }()
		page.Events = []json.RawMessage{}
		if r.reverse { // start near the end: IDs have no gaps
			position, err := s.options.Archive.Position(ctx, uid)
			if err != nil && !errors.Is(err, archiveclient.ErrNothing) {
				return nil, unavailable(ctx, err)
			}
			last := position.Next - 1
			if r.end >= 0 {
				last = min(last, r.end)
			}
			page.start, page.end = max(r.start, last-r.limit+1), last
			page.HasMore = page.start > r.start
			if last < page.start {
				return &page.EventPage, nil
			}
		}
		err = s.options.Archive.Events(ctx, uid, earlier, page.start, page.add)
		switch {
		case page.refused != nil:
			return nil, page.refused
		case errors.Is(err, archiveclient.ErrNothing) && earlier > 0:
			return nil, answer.NotFound
		case err == nil || errors.Is(err, archiveclient.ErrNothing):
		case r.reverse || len(page.Events) == 0:
			return nil, unavailable(ctx, err)
		default:
			page.HasMore = true // the read of the next page reports the error
		}
		if r.reverse {
			slices.Reverse(page.Events)
		}
		return &page.EventPage, nil
	}
}

// archivedPage collects events of the archive in order.
type archivedPage struct {
	session.EventPage
	eventRange
	hold *limits.Hold
	// size is the number of bytes in the page. The number read also includes the bytes of events
	// that the page lacks.
	size, read int
	// refused is the error if the memory limits on responses had no room for an event.
	refused error
}

// add adds an event. It returns false if the page is complete, or if the memory limits on responses
// have no room for the event.
func (p *archivedPage) add(id int, event json.RawMessage) bool {
	p.read += len(event)
	switch {
	case p.end >= 0 && id > p.end:
		return false
	case !p.reverse && (len(p.Events) == p.limit || len(p.Events) > 0 && p.size+len(event) > maxPage):
		p.HasMore = true
		return false
	}
	for ; p.size+len(event) > maxPage && len(p.Events) > 0; p.HasMore = true { // keep the latest events
		_ = p.hold.Take(-int64(len(p.Events[0])))
		p.Events, p.size = p.Events[1:], p.size-len(p.Events[0])
	}
	if p.refused = p.hold.Take(int64(len(event))); p.refused != nil {
		return false
	}
	p.Events, p.size = append(p.Events, event), p.size+len(event)
	return true
}

// errGap reports that events were removed between the reads of two pages.
var errGap = errors.New("events changed while they were read")

// visitEvents visits the events from an ID on, page by page. If the memory limits on responses have
// no room for a page, visitEvents waits and retries. It waits for the first page only if
// waitForFirst is set. visited is true if at least one event was visited.
func visitEvents(ctx context.Context, hold *limits.Hold, pages pager, from int, waitForFirst bool,
	visit func(live.Event) error) (visited bool, err error) {
	defer hold.Release()
	for next := from; ; {
		var page *session.EventPage
		read := func() (err error) {
			page, err = pages(ctx, hold, eventRange{start: next, end: -1, limit: archivedLimit})
			return err
		}
		if waitForFirst || next > from {
			err = hold.Retry(ctx, read)
		} else {
			err = read()
		}
		if err != nil {
			return next > from, err
		}
		for i, data := range page.Events {
			if err := visit(live.Event{ID: next + i, Data: data}); err != nil {
				return true, err
			}
			// Release each event when it is sent, so that a slow reader holds only unsent events.
			page.Events[i] = nil
			_ = hold.Take(-int64(len(data)))
		}
		switch {
		case len(page.Events) == 0 && next > from:
			return true, errGap
		case !page.HasMore || len(page.Events) == 0:
			return next > from || len(page.Events) > 0, nil
		}
		next += len(page.Events)
	}
}

func (s *server) events(ctx context.Context, r request) (any, error) {
	wanted, err := decodeRange(r.URL.Query())
	if err != nil {
		return nil, err
	}
	page, err := s.pages(r.conversation)(ctx, r.held, wanted)
	if err != nil {
		return nil, err
	}
	return textOf(page), nil
}

// textOf encodes a page. A JSON encoder would make two more copies of the events.
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

// trajectory streams all events as one JSON response without holding the response in memory.
func (s *server) trajectory(w http.ResponseWriter, r request) (err error) {
	pages := s.pages(r.conversation)
	if number := r.URL.Query().Get("earlier"); number != "" {
		if pages, err = s.earlierPages(r.conversation, number); err != nil {
			return err
		}
	}
	out := bufio.NewWriterSize(newDeadlineWriter(w), 32<<10)
	begin := sync.OnceFunc(func() {
		answer.Head(w, "application/json")
		_, _ = out.WriteString(`{"trajectory":[`)
	})
	visited, err := visitEvents(r.Context(), r.held, pages, 0, false, func(e live.Event) error {
		begin()
		if e.ID > 0 {
			_ = out.WriteByte(',')
		}
		_, err := out.Write(e.Data)
		return err
	})
	if err != nil && !visited {
		return err
	}
	if err == nil {
		begin()
		_, _ = out.WriteString("]}\n")
		err = out.Flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the client must see that the response is incomplete
	}
	return nil
}

func (s *server) stream(w http.ResponseWriter, r request) error {
	after, err := lastEvent(r.Request)
	if err != nil {
		return err
	}
	previews, err := truth(r.URL.Query(), session.PreviewsParameter)
	if err != nil {
		return err
	}
	ctx, release := s.following(r.Request, r.user, r.credential, r.conversation)
	defer release()
	out := newDeadlineWriter(w)
	begun := false
	begin := sync.OnceFunc(func() {
		begun = true
		w.Header().Set("X-Accel-Buffering", "no") // else proxies send nothing before the end
		answer.Head(w, "text/event-stream")
		w.WriteHeader(http.StatusOK)
	})
	send := func(e live.Event) error {
		begin()
		head := fmt.Sprintf("id: %d", e.ID)
		if e.Preview {
			head = "event: " + session.PreviewEvent
		}
		_, err := fmt.Fprintf(out, "%s\ndata: %s\n\n", head, e.Data)
		return err
	}
	if s.isOver(r.conversation) {
		visited, err := visitEvents(ctx, r.held, s.pages(r.conversation), after+1, false, send)
		if err != nil && visited {
			panic(http.ErrAbortHandler) // the client must see that the response is incomplete
		}
		if err == nil {
			begin()
		}
		return err
	}
	after = s.resumeAfter(ctx, r.conversation, r.held, after)
	err = s.sessions.Follow(ctx, r.conversation, after, previews, r.held, send, func() error {
		begin()
		_, err := io.WriteString(out, ": alive\n\n")
		return err
	})
	if begun {
		return nil // the client reconnects with its last ID
	}
	return err
}

// resumeAfter returns the ID of the event after which a client's stream resumes. This is the ID of
// the client's last event, or -1 if the journal was reset and lacks that event. A read error is
// ignored, because the next read reports it.
func (s *server) resumeAfter(ctx context.Context, c *v1alpha1.Conversation, hold *limits.Hold, after int) int {
	if found, err := s.findAfter(ctx, c, hold, after); err == nil {
		return found
	}
	return after
}

// findAfter returns the given event ID if the session's journal contains this event, and -1 if not.
func (s *server) findAfter(ctx context.Context, c *v1alpha1.Conversation, hold *limits.Hold, after int) (int, error) {
	if after < 0 {
		return after, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	defer hold.Release()
	page, err := s.pages(c)(ctx, hold, eventRange{start: after, end: after, limit: 1})
	if err == nil && len(page.Events) == 0 {
		return -1, nil
	}
	return after, err
}

// lastEvent returns the ID of the last event that the client has, or -1.
func lastEvent(r *http.Request) (int, error) {
	if text := r.Header.Get("Last-Event-ID"); text != "" {
		return eventID(text, -1, "header", "last-event-id")
	}
	if text := r.URL.Query().Get("after"); text != "" {
		return eventID(text, -1, "query", "after")
	}
	return -1, nil
}
