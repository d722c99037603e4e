// Package events serves a session's journal over HTTP: read by range, followed live, and added to
// by the session's user.
package events

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/cmd/runtime/reply"
)

const (
	// maxAction bounds what a user sends: a message, and images in it, maxImages at most, as many
	// as a first message may have.
	maxAction = 8 << 20
	maxImages = 16
	// usualLimit and maxLimit of a page of events.
	usualLimit, maxLimit = 20, 100
	// heartbeat is a sign of life on a stream, and writeTimeout how long a reader may take for what
	// is sent to it.
	heartbeat    = 15 * time.Second
	writeTimeout = 30 * time.Second
	// batch and batchBytes bound what is read for a reader at once; an event that is larger is read
	// by itself.
	batch      = 64
	batchBytes = 16 << 20
)

// Driver takes what users send.
type Driver interface {
	Message(text string, images []string, key string) error
	ChangeState(state session.State, key string) error
}

// Server of the events.
type Server struct {
	Journal *journal.Journal
	Driver  Driver
	// Stopping is closed when streams are to end.
	Stopping <-chan struct{}
}

// List serves GET: events by range, forwards or backwards.
func (s *Server) List(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	number := func(name string, usual int) (int, bool) {
		text := query.Get(name)
		if text == "" {
			return usual, true
		}
		n, err := strconv.Atoi(text)
		return n, err == nil && n >= 0
	}
	count := s.Journal.Len()
	start, okStart := number("start_id", 0)
	end, okEnd := number("end_id", count-1)
	limit, okLimit := number("limit", usualLimit)
	switch {
	case !okLimit || limit < 1 || limit > maxLimit:
		reply.Refuse(w, http.StatusBadRequest, "Invalid limit")
		return
	case !okStart || !okEnd:
		reply.Refuse(w, http.StatusUnprocessableEntity, "start_id and end_id are numbers of events")
		return
	}
	start, end = min(start, count), min(end, count-1)+1 // end_id is the last one wanted
	reverse := query.Get("reverse") == "true"
	from, to := start, min(start+limit, end)
	if reverse {
		from, to = max(start, end-limit), end
	}
	// Events with images in them are large: a page of them is shorter, and what is left comes with
	// the next.
	for from < to-1 && s.Journal.Size(from)-s.Journal.Size(to) > batchBytes {
		if reverse {
			from++
		} else {
			to--
		}
	}
	lines, err := s.Journal.Lines(from, to)
	if err != nil {
		reply.Refuse(w, http.StatusInternalServerError, "the events cannot be read")
		return
	}
	if reverse {
		slices.Reverse(lines)
	}
	reply.JSON(w, http.StatusOK, session.EventPage{
		Events: append([]json.RawMessage{}, lines...), HasMore: !reverse && to < end || reverse && from > start,
	})
}

// Stream serves GET: the events after the one that the reader has, and then each as it comes, as
// Server-Sent Events.
func (s *Server) Stream(w http.ResponseWriter, r *http.Request) {
	last := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after"))
	next := 0
	if last != "" {
		n, err := strconv.Atoi(last)
		if err != nil || n < -1 {
			reply.Refuse(w, http.StatusUnprocessableEntity, "Last-Event-ID is the number of an event")
			return
		}
		next = min(n, s.Journal.Len()-1) + 1 // who has more than there is gets what comes
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	out := reply.Patient(w, writeTimeout)
	send := func(text string) bool {
		_, err := io.WriteString(out, text)
		return err == nil && out.FlushError() == nil
	}
	if !send(": here\n\n") {
		return
	}
	for {
		to := min(next+batch, s.Journal.Len())
		for next < to-1 && s.Journal.Size(next)-s.Journal.Size(to) > batchBytes {
			to--
		}
		lines, err := s.Journal.Lines(next, to)
		if err != nil {
			return
		}
		for _, line := range lines {
			if !send(fmt.Sprintf("id: %d\ndata: %s\n\n", next, line)) {
				return
			}
			next++
		}
		if len(lines) > 0 {
			continue
		}
		select {
		case <-s.Journal.More(next):
		case <-time.After(heartbeat):
			if !send(": alive\n\n") {
				return
			}
		case <-r.Context().Done():
			return
		case <-s.Stopping:
			return
		}
	}
}

// action is what a user sends.
type action struct {
	Action string `json:"action"`
	Args   struct {
		Content    *string  `json:"content"`
		ImageURLs  []string `json:"image_urls"`
		AgentState *string  `json:"agent_state"`
	} `json:"args"`
}

var wishes = map[session.State]bool{
	session.StateConfirmed: true, session.StateRejected: true, session.StatePaused: true, session.StateRunning: true,
	session.StateStopped: true,
}

// Add serves POST: a message, or a wish for another state. It is on record when it is answered. Who
// did not hear the answer sends it again with the same key, and it is taken once.
func (s *Server) Add(w http.ResponseWriter, r *http.Request) {
	var a action
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAction)).Decode(&a); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			reply.Refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the event has more than %d bytes", maxAction))
			return
		}
		detail := "the body is no event"
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			detail = wrong.Field + ": it is of another type"
		}
		reply.Refuse(w, http.StatusUnprocessableEntity, detail)
		return
	}
	key := r.Header.Get(session.IdempotencyHeader)
	if problem := a.problem(key); problem != "" {
		reply.Refuse(w, http.StatusUnprocessableEntity, problem)
		return
	}
	var err error
	if a.Action == session.ActionMessage {
		err = s.Driver.Message(*a.Args.Content, a.Args.ImageURLs, key)
	} else {
		err = s.Driver.ChangeState(session.State(*a.Args.AgentState), key)
	}
	switch {
	case errors.Is(err, driver.ErrNoAgent), errors.Is(err, driver.ErrOver), errors.Is(err, driver.ErrNothingAsked):
		reply.Refuse(w, http.StatusConflict, err.Error())
	case errors.Is(err, journal.ErrTooLarge):
		reply.Refuse(w, http.StatusRequestEntityTooLarge, journal.ErrTooLarge.Error())
	case err != nil:
		reply.Refuse(w, http.StatusInternalServerError, "the event could not be recorded")
	default:
		reply.JSON(w, http.StatusOK, map[string]bool{"success": true})
	}
}

// problem is why an action is not valid; empty where it is.
func (a *action) problem(key string) string {
	switch {
	case len(key) > session.MaxIdempotencyKey:
		return fmt.Sprintf("%s: it may have %d characters", session.IdempotencyHeader, session.MaxIdempotencyKey)
	case len(a.Args.ImageURLs) > maxImages:
		return fmt.Sprintf("args.image_urls: a message may have %d images", maxImages)
	case a.Action == session.ActionMessage:
		if a.Args.Content == nil || *a.Args.Content == "" && len(a.Args.ImageURLs) == 0 {
			return "args.content: a message says something"
		}
	case a.Action != session.ActionChangeState:
		return "action: it is message or change_agent_state"
	case a.Args.AgentState == nil || !wishes[session.State(*a.Args.AgentState)]:
		return "args.agent_state: it is user_confirmed, user_rejected, paused, running or stopped"
	}
	return ""
}
