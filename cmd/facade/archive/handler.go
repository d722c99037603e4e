package archive

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/answer"
)

const (
	// maxSegment bounds what is taken at once.
	maxSegment = session.MaxArchived
	// maxTaken bounds what is taken from all sessions at once.
	maxTaken = 4 * maxSegment
	// requestTimeout bounds the work for one request.
	requestTimeout = 30 * time.Second
	// writeTimeout is how long a session may take for each piece of what it reads.
	writeTimeout = 30 * time.Second
)

// Conversations says which there are.
type Conversations interface {
	HasConversation(ctx context.Context, uid string) (bool, error)
}

// Handler takes what sessions leave. It is on a port that serves nothing else.
type Handler struct {
	store         *Store
	public        func() (ed25519.PublicKey, error)
	conversations Conversations
	taken         *semaphore.Weighted
	mux           *http.ServeMux
}

// NewHandler keeps what sessions leave in a store, if their tokens were signed with the key of which public is the open half.
func NewHandler(store *Store, conversations Conversations, public func() (ed25519.PublicKey, error)) *Handler {
	h := &Handler{store: store, public: public, conversations: conversations, taken: semaphore.NewWeighted(maxTaken), mux: http.NewServeMux()}
	at := session.ArchiveRoot + "{uid}"
	h.mux.HandleFunc("GET "+at, h.session(h.position))
	h.mux.HandleFunc("GET "+at+session.ArchiveEvents, h.session(h.read))
	h.mux.HandleFunc("POST "+at+session.ArchiveEvents, h.session(h.append))
	h.mux.HandleFunc("POST "+at+session.ArchiveAside, h.session(h.aside))
	h.mux.HandleFunc("GET "+at+session.ArchiveEnd, h.session(h.ending))
	h.mux.HandleFunc("POST "+at+session.ArchiveEnd, h.session(h.end))
	h.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { answer.Write(w, nil, answer.NotFound) })
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// session serves the session of a conversation that there is, with a token for that one.
func (h *Handler) session(do func(ctx context.Context, w http.ResponseWriter, r *http.Request, uid string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTimeout)
		defer cancel()
		uid := r.PathValue("uid")
		err := h.admit(ctx, r, uid)
		if err == nil {
			err = do(ctx, w, r, uid)
		}
		if err == nil {
			return
		}
		if answer.CodeOf(err) == http.StatusInternalServerError {
			logf.FromContext(ctx).WithName("archive").Error(err, "The archive failed", "uid", uid)
			err = answer.Unavailable
		}
		answer.Write(w, nil, err)
	}
}

var errFrom = answer.Refuse(http.StatusUnprocessableEntity, "it is a number, of an event or of a journal")

// gone is answered for a conversation that was deleted: nothing more is kept of it.
var gone = answer.Refuse(http.StatusGone, "There is no such conversation")

func (h *Handler) admit(ctx context.Context, r *http.Request, uid string) error {
	key, err := h.public()
	if err != nil {
		return answer.Unavailable
	}
	if session.VerifyToken(key, r.Header.Get(session.TokenHeader), session.AudienceArchive, uid, time.Now()) != nil {
		return answer.Unauthorized
	}
	found, err := h.conversations.HasConversation(ctx, uid)
	switch {
	case err != nil:
		return answer.Unavailable
	case !found:
		return gone
	case r.Method == http.MethodGet:
		return nil
	}
	attempt, _ := strconv.Atoi(r.URL.Query().Get(session.ArchiveAttempt)) // those that do not say are of an older version
	return refusal(h.store.Claim(uid, attempt))
}

func (h *Handler) position(ctx context.Context, w http.ResponseWriter, _ *http.Request, uid string) error {
	position, err := h.store.Position(ctx, uid)
	if err != nil {
		return err
	}
	answer.Write(w, position, nil)
	return nil
}

// read sends the events from an id on: to a session that has lost its workspace, or to a facade.
func (h *Handler) read(_ context.Context, w http.ResponseWriter, r *http.Request, uid string) error {
	number := func(name string) (n int, err error) {
		if text := r.URL.Query().Get(name); text != "" {
			n, err = strconv.Atoi(text)
		}
		if err != nil || n < 0 {
			err = errFrom
		}
		return n, err
	}
	from, err := number(session.ArchiveFrom)
	if err != nil {
		return err
	}
	earlier, err := number(session.ArchiveEarlier)
	if err != nil {
		return err
	}
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/jsonl")
	begun, failed := false, error(nil)
	visit := func(_ int, event json.RawMessage) bool {
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		begun = true
		_, failed = w.Write(append(event, '\n'))
		return failed == nil
	}
	if earlier > 0 {
		err = h.store.Earlier(r.Context(), uid, earlier, visit)
	} else {
		err = h.store.Events(r.Context(), uid, from, visit)
	}
	switch {
	case errors.Is(err, ErrNothing) && earlier > 0:
		return answer.NotFound
	case errors.Is(err, ErrNothing):
		return nil
	case failed != nil, err != nil && begun:
		panic(http.ErrAbortHandler) // who reads it must see that it is not whole
	}
	return err
}

func (h *Handler) ending(ctx context.Context, w http.ResponseWriter, _ *http.Request, uid string) error {
	ending, err := h.store.Ending(ctx, uid)
	if errors.Is(err, ErrNothing) {
		return answer.NotFound
	}
	if err != nil {
		return err
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	answer.Write(w, ending, nil)
	return nil
}

func (h *Handler) append(ctx context.Context, w http.ResponseWriter, r *http.Request, uid string) error {
	from, err := strconv.Atoi(r.URL.Query().Get(session.ArchiveFrom))
	if err != nil || from < 0 {
		return errFrom
	}
	lines, done, err := h.body(ctx, w, r)
	if err != nil {
		return err
	}
	defer done()
	query := r.URL.Query()
	segment := Segment{Journal: query.Get(session.ArchiveJournal), Previous: query.Get(session.ArchivePrevious), From: from, Lines: lines}
	position, err := h.store.Append(ctx, uid, segment)
	if err != nil {
		return refusal(err)
	}
	answer.Write(w, position, nil)
	return nil
}

// refusal of what is not taken; any other error is as it is.
func refusal(err error) error {
	switch {
	case errors.Is(err, ErrMalformed):
		return answer.Refuse(http.StatusUnprocessableEntity, err.Error())
	case errors.Is(err, ErrOtherJournal):
		return answer.Refuse(http.StatusConflict, err.Error())
	case errors.Is(err, ErrSuperseded):
		return answer.Refuse(http.StatusForbidden, err.Error())
	case errors.Is(err, ErrFull):
		return answer.Refuse(http.StatusRequestEntityTooLarge, err.Error())
	}
	return err
}

// aside makes room for a journal that began anew.
func (h *Handler) aside(ctx context.Context, w http.ResponseWriter, _ *http.Request, uid string) error {
	if err := h.store.Aside(ctx, uid); err != nil {
		return refusal(err)
	}
	answer.Write(w, session.ArchivePosition{}, nil)
	return nil
}

func (h *Handler) end(ctx context.Context, w http.ResponseWriter, r *http.Request, uid string) error {
	text, done, err := h.body(ctx, w, r)
	if err != nil {
		return err
	}
	defer done()
	ending := &session.Ending{}
	if json.Unmarshal(text, ending) != nil {
		return answer.Refuse(http.StatusUnprocessableEntity, "the body is no ending of a session")
	}
	if err := h.store.End(ctx, uid, ending); err != nil {
		return err
	}
	answer.Write(w, map[string]bool{"success": true}, nil)
	return nil
}

// body of a request, within what all may have under way. done must be called unless there is an error.
func (h *Handler) body(ctx context.Context, w http.ResponseWriter, r *http.Request) (text []byte, done func(), err error) {
	length := r.ContentLength
	if length < 0 || length > maxSegment {
		return nil, nil, answer.TooLarge
	}
	if h.taken.Acquire(ctx, length) != nil {
		return nil, nil, answer.Unavailable
	}
	text, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxSegment))
	if err != nil {
		h.taken.Release(length)
		return nil, nil, answer.Refuse(http.StatusBadRequest, "The body could not be read")
	}
	return text, func() { h.taken.Release(length) }, nil
}
