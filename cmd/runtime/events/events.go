// Package events serves a session's journal over HTTP, as ranges of events and as a live stream. A
// POST request adds an event of the session's user.
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
	"unicode/utf8"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/internal/deadline"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
	"github.com/parley-dev/parley/cmd/runtime/reply"
)

const (
	// maxAction bounds a POST body, including images, in bytes. maxImages bounds the number of
	// images in a message. The CRD has the same bound for the first message of a Conversation.
	maxAction = 8 << 20
	maxImages = 16
	// maxReason bounds the reason for a rejection, in characters.
	maxReason = 2000
	// usualLimit is the default number of events per page. maxLimit is the maximum.
	usualLimit, maxLimit = 20, 100
	// heartbeat is the interval between the comments that keep an idle stream open. writeTimeout is
	// how long a client may take to read each part of a response.
	heartbeat    = 15 * time.Second
	writeTimeout = 30 * time.Second
	// batch and batchBytes bound one read of the journal, in events and in bytes. An event larger
	// than batchBytes is read alone.
	batch      = 64
	batchBytes = 16 << 20
)

// Driver accepts users' messages and state changes.
type Driver interface {
	Message(text string, images []string, key string) error
	ChangeState(request driver.StateRequest, key string) error
	Revoke(approval int, key string) error
	// Preview returns the unfinished texts of the current turn, which no event contains yet. The
	// channel is closed when these texts change.
	Preview() (session.Preview, <-chan struct{})
}

// Server serves the events of a session.
type Server struct {
	Journal *journal.Journal
	Driver  Driver
	// Stopping is closed when streams must end.
	Stopping <-chan struct{}
}

// List serves GET requests for a range of events, in ascending or descending order.
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
		reply.Refuse(w, http.StatusUnprocessableEntity, "start_id and end_id must be event numbers")
		return
	}
	start, end = min(start, count), min(end, count-1)+1 // end_id is inclusive
	reverse := query.Get("reverse") == "true"
	from, to := start, min(start+limit, end)
	if reverse {
		from, to = max(start, end-limit), end
	}
	// Large events, such as events with images, make a page shorter. The next page contains the
	// omitted events.
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

// Stream serves GET requests with Server-Sent Events. It sends the events after the client's last
// event, and then each new event. A client that requests previews receives each preview after the
// events that precede it. Previews are not buffered, so a slow client misses some of them.
func (s *Server) Stream(w http.ResponseWriter, r *http.Request) {
	last := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after"))
	next := 0
	if last != "" {
		n, err := strconv.Atoi(last)
		if err != nil || n < -1 {
			reply.Refuse(w, http.StatusUnprocessableEntity,
				"Last-Event-ID and the query parameter \"after\" must be event numbers")
			return
		}
		next = min(n, s.Journal.Len()-1) + 1 // a client ahead of the journal gets only new events
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	out := &deadline.Writer{ResponseWriter: w, Timeout: writeTimeout, Flushing: true}
	send := func(text string) bool {
		_, err := io.WriteString(out, text)
		return err == nil
	}
	if !send(": here\n\n") {
		return
	}
	var changed <-chan struct{} // nil if the client did not request previews
	if r.URL.Query().Get(session.PreviewsParameter) == "true" {
		first := make(chan struct{})
		close(first)
		changed = first
	}
	shown := previewFrame(session.Preview{})
	for {
		lines, err := s.batchFrom(next)
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
		case <-changed:
			preview, again := s.Driver.Preview()
			if s.Journal.Len() > next {
				continue // send the new events before the preview
			}
			changed = again
			if frame := previewFrame(preview); frame != shown {
				shown = frame
				if !send(frame) {
					return
				}
			}
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

func (s *Server) batchFrom(next int) ([]json.RawMessage, error) {
	to := min(next+batch, s.Journal.Len())
	for next < to-1 && s.Journal.Size(next)-s.Journal.Size(to) > batchBytes {
		to--
	}
	return s.Journal.Lines(next, to)
}

func previewFrame(preview session.Preview) string {
	text, _ := json.Marshal(preview) // texts and numbers can always be encoded
	return fmt.Sprintf("event: %s\ndata: %s\n\n", session.PreviewEvent, text)
}

type action struct {
	Action string `json:"action"`
	Args   struct {
		Content    *string  `json:"content"`
		ImageURLs  []string `json:"image_urls"`
		AgentState *string  `json:"agent_state"`
		// Question, Reason and Remember belong to the answer to a question. Approval belongs to the
		// revocation of an approval.
		Question *int   `json:"question"`
		Reason   string `json:"reason"`
		Remember bool   `json:"remember"`
		Approval *int   `json:"approval"`
	} `json:"args"`
}

var requestable = map[session.State]bool{
	session.StateConfirmed: true, session.StateRejected: true, session.StatePaused: true, session.StateRunning: true,
	session.StateStopped: true,
}

// Add serves POST requests with a message or a state change. It responds after the event is
// recorded. A request that is repeated with the same key is recorded only one time.
func (s *Server) Add(w http.ResponseWriter, r *http.Request) {
	var a action
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAction)).Decode(&a); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			reply.Refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the event has more than %d bytes", maxAction))
			return
		}
		detail := "the body is not a valid event"
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			detail = wrong.Field + ": wrong type"
		}
		reply.Refuse(w, http.StatusUnprocessableEntity, detail)
		return
	}
	key := r.Header.Get(session.IdempotencyHeader)
	if problem := a.problem(key); problem != "" {
		reply.Refuse(w, http.StatusUnprocessableEntity, problem)
		return
	}
	err := s.apply(&a, key)
	conflict, conflicts := errors.AsType[driver.Conflict](err)
	switch {
	case conflicts:
		reply.Refuse(w, http.StatusConflict, conflict.Error())
	case errors.Is(err, journal.ErrTooLarge):
		reply.Refuse(w, http.StatusRequestEntityTooLarge, journal.ErrTooLarge.Error())
	case err != nil:
		reply.Refuse(w, http.StatusInternalServerError, "the event could not be recorded")
	default:
		reply.JSON(w, http.StatusOK, map[string]bool{"success": true})
	}
}

func (s *Server) apply(a *action, key string) error {
	switch a.Action {
	case session.ActionMessage:
		return s.Driver.Message(*a.Args.Content, a.Args.ImageURLs, key)
	case session.ActionRevoke:
		return s.Driver.Revoke(*a.Args.Approval, key)
	}
	return s.Driver.ChangeState(driver.StateRequest{State: session.State(*a.Args.AgentState), Question: a.Args.Question,
		Reason: a.Args.Reason, Remember: a.Args.Remember}, key)
}

func (a *action) problem(key string) string {
	switch {
	case len(key) > session.MaxIdempotencyKey:
		return fmt.Sprintf("%s: at most %d characters are allowed", session.IdempotencyHeader, session.MaxIdempotencyKey)
	case len(a.Args.ImageURLs) > maxImages:
		return fmt.Sprintf("args.image_urls: at most %d images are allowed", maxImages)
	case a.Action == session.ActionMessage:
		if a.Args.Content == nil || *a.Args.Content == "" && len(a.Args.ImageURLs) == 0 {
			return "args.content: must not be empty, unless the message has images"
		}
		for i, address := range a.Args.ImageURLs {
			if err := driver.CheckImage(address); err != nil {
				return fmt.Sprintf("args.image_urls[%d]: %v", i, err)
			}
		}
	case a.Action == session.ActionRevoke:
		if a.Args.Approval == nil {
			return "args.approval: must be the ID of the event with the approval"
		}
	case a.Action != session.ActionChangeState:
		return "action: must be message, change_agent_state or revoke_approval"
	case a.Args.AgentState == nil || !requestable[session.State(*a.Args.AgentState)]:
		return "args.agent_state: must be user_confirmed, user_rejected, paused, running or stopped"
	}
	return a.answerProblem()
}

func (a *action) answerProblem() string {
	state := session.State(ptr.Deref(a.Args.AgentState, ""))
	switch {
	case utf8.RuneCountInString(a.Args.Reason) > maxReason:
		return fmt.Sprintf("args.reason: at most %d characters are allowed", maxReason)
	case a.Args.Reason != "" && state != session.StateRejected:
		return "args.reason: is allowed only with agent_state user_rejected"
	case a.Args.Remember && state != session.StateConfirmed:
		return "args.remember: is allowed only with agent_state user_confirmed"
	case a.Args.Question != nil && state != session.StateConfirmed && state != session.StateRejected:
		return "args.question: is allowed only with agent_state user_confirmed or user_rejected"
	}
	return ""
}
