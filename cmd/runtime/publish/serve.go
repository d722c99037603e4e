package publish

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/githost"
	"github.com/parley-dev/parley/cmd/runtime/reply"
)

const (
	// answerTimeout is how long a request waits for the result. After that, the response says that
	// the work is still running. The facade's timeout is a little longer.
	answerTimeout  = 10 * time.Second
	publishTimeout = 10 * time.Minute
	maxRequest     = 128 << 10
)

// Server serves the page's buttons that publish changes.
type Server struct {
	*Publisher
	// Working reports whether the agent is working on a turn and may change files.
	Working func() bool
	// Notice shows a text to the user in the conversation. It reports each push, and failures that
	// are known only after the response was sent.
	Notice func(text string)
	// Busy keeps the session from becoming idle until done() is called.
	Busy func() (done func())
}

// Push commits all changes and pushes the branch.
func (s *Server) Push(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, func(ctx context.Context, request session.PublishRequest) (session.Published, error) {
		branch, err := s.CommitAndPush(ctx, request)
		if err == nil {
			s.Notice("The branch " + branch + " was pushed.")
		}
		return session.Published{}, err
	})
}

// PullRequest commits all changes, pushes the branch and opens a pull request.
func (s *Server) PullRequest(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, func(ctx context.Context, request session.PublishRequest) (session.Published, error) {
		link, err := s.CommitAndCreate(ctx, request)
		return session.Published{URL: s.Mask(link)}, err
	})
}

// serve calls do(), which continues even if the client disconnects. Otherwise, a branch could be
// pushed without its pull request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request,
	do func(context.Context, session.PublishRequest) (session.Published, error)) {
	var request session.PublishRequest
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		reply.Refuse(w, http.StatusRequestEntityTooLarge, "the request is larger than 128 KiB: shorten the title or the body")
		return
	}
	if err != nil || len(text) > 0 && json.Unmarshal(text, &request) != nil {
		reply.Refuse(w, http.StatusUnprocessableEntity, "the request must be a JSON object, and title, body and base must "+
			"be texts")
		return
	}
	if s.Working() {
		reply.Refuse(w, http.StatusConflict, "The agent is working: wait for the end of its turn, or pause it")
		return
	}
	type outcome struct {
		session.Published
		err error
	}
	late := time.After(answerTimeout)
	outcomes := make(chan outcome)
	gone := make(chan struct{})
	defer close(gone)
	go func() {
		defer s.Busy()()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), publishTimeout)
		defer cancel()
		done, err := do(ctx, request)
		select {
		case outcomes <- outcome{done, err}:
		case <-gone:
			if err != nil {
				s.Notice("Publishing the changes failed: " + s.Mask(err.Error()))
			}
		}
	}()
	select {
	case o := <-outcomes:
		s.answer(w, o.Published, o.err)
	case <-late:
		reply.JSON(w, http.StatusOK, session.Published{Running: true})
	}
}

func (s *Server) answer(w http.ResponseWriter, done session.Published, err error) {
	switch {
	case err == nil:
		reply.JSON(w, http.StatusOK, done)
	case errors.Is(err, githost.ErrNoToken), errors.Is(err, githost.ErrToken):
		reply.Refuse(w, http.StatusFailedDependency, err.Error())
	case errors.Is(err, githost.ErrHost):
		// The facade hides the error text of a 5xx response, so this must be a 4xx status.
		reply.Refuse(w, http.StatusFailedDependency, s.Mask(err.Error()))
	default:
		reply.Refuse(w, http.StatusUnprocessableEntity, s.Mask(err.Error()))
	}
}
