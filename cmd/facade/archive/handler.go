package archive

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/answer"
	"github.com/parley-dev/parley/cmd/facade/limits"
)

const (
	// maxSegment bounds what is taken at once.
	maxSegment = session.MaxArchived
	// maxReads bounds how many read at once of one conversation, ownerReads of those of one owner,
	// and allReads of all: each takes little, however long it takes.
	maxReads, ownerReads, allReads = 32, 128, 2048
	// requestTimeout bounds the work for one request.
	requestTimeout = 30 * time.Second
	// writeTimeout is how long a session may take for each piece of what it reads.
	writeTimeout = 30 * time.Second
)

// Conversations says which there are, and whose.
type Conversations interface {
	// OwnerOf is empty where there is none.
	OwnerOf(ctx context.Context, uid string) (owner string, err error)
}

// Handler takes what sessions leave. It is on a port that serves nothing else.
type Handler struct {
	store         *Store
	public        func() (ed25519.PublicKey, error)
	conversations Conversations
	// reads are those under way by conversation, owners and their bodies by owner.
	reads, owners *limits.Budget
	mux           *http.ServeMux
}

// NewHandler keeps what sessions leave in a store, if their tokens were signed with the key of
// which public is the open half.
func NewHandler(store *Store, conversations Conversations, public func() (ed25519.PublicKey, error)) *Handler {
	h := &Handler{
		store: store, public: public, conversations: conversations, mux: http.NewServeMux(),
		reads:  limits.New(limits.Options{Streams: limits.Bounds{User: maxReads, All: allReads}}),
		owners: limits.New(limits.Options{MaxBody: maxSegment, Streams: limits.Bounds{User: ownerReads, All: allReads}}),
	}
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

// call of a session.
type call struct {
	*http.Request
	uid, owner string
	// attempt of the session; those that do not say are of an older version.
	attempt int
	body    []byte
}

// session serves the session of a conversation that there is, with a token for that one.
func (h *Handler) session(do func(ctx context.Context, w http.ResponseWriter, c call) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := call{Request: r, uid: r.PathValue("uid")}
		c.attempt, _ = strconv.Atoi(r.URL.Query().Get(session.ArchiveAttempt))
		var err error
		c.owner, err = h.admit(c)
		if err == nil && r.Method == http.MethodPost {
			var done func()
			if c.body, done, err = h.owners.ReadBody(r, c.owner); err == nil {
				defer done()
			}
		}
		if err != nil {
			answer.TurnAway(w, r, told(c, err))
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTimeout)
		defer cancel()
		if err := do(ctx, w, c); err != nil {
			answer.Write(w, nil, told(c, err))
		}
	}
}

// told is what a session hears of an error, and what is not kept is counted.
func told(c call, err error) error {
	err = refusal(err)
	switch answer.CodeOf(err) {
	case http.StatusInternalServerError:
		logf.FromContext(c.Context()).WithName("archive").Error(err, "The archive failed", "uid", c.uid)
		err = answer.Later(http.StatusServiceUnavailable, "The archive failed; try again", time.Second)
		if c.Method == http.MethodPost {
			notKept.WithLabelValues("failed").Inc()
		}
	case http.StatusRequestEntityTooLarge:
		notKept.WithLabelValues("full").Inc()
	}
	return err
}

var errFrom = answer.Refuse(http.StatusUnprocessableEntity, "it is a number, of an event or of a journal")

// gone is answered for a conversation that was deleted: nothing more is kept of it.
var gone = answer.Refuse(http.StatusGone, "There is no such conversation")

// admit says whose session asks.
func (h *Handler) admit(c call) (owner string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), requestTimeout)
	defer cancel()
	key, err := h.public()
	if err != nil {
		return "", answer.Unavailable
	}
	if session.VerifyToken(key, c.Header.Get(session.TokenHeader), session.AudienceArchive, c.uid, time.Now()) != nil {
		return "", answer.Unauthorized
	}
	owner, err = h.conversations.OwnerOf(ctx, c.uid)
	switch {
	case err != nil:
		return "", answer.Unavailable
	case owner == "":
		return "", gone
	case c.Method != http.MethodPost:
		return owner, nil
	}
	h.store.OwnedBy(c.uid, owner)
	return owner, h.store.Claim(ctx, c.uid, c.attempt)
}

func (h *Handler) position(ctx context.Context, w http.ResponseWriter, c call) error {
	position, err := h.store.Position(ctx, c.uid)
	if err != nil {
		return err
	}
	answer.Write(w, position, nil)
	return nil
}

// takeRead takes a place among those who read. done must be called when it is over.
func (h *Handler) takeRead(c call) (done func(), err error) {
	ofOwner, err := h.owners.Take(c.owner, limits.Streams)
	if err != nil {
		return nil, err
	}
	ofConversation, err := h.reads.Take(c.uid, limits.Streams)
	if err != nil {
		ofOwner()
		return nil, err
	}
	return func() { ofConversation(); ofOwner() }, nil
}

// read sends the events from an id on: to a session that has lost its workspace, or to a facade.
func (h *Handler) read(_ context.Context, w http.ResponseWriter, c call) error {
	done, err := h.takeRead(c)
	if err != nil {
		return err
	}
	defer done()
	number := func(name string) (n int, err error) {
		if text := c.URL.Query().Get(name); text != "" {
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
	w.Header().Set("Content-Type", "application/jsonl")
	to := &patient{w: w}
	if earlier > 0 {
		err = h.store.CopyEarlier(c.Context(), c.uid, earlier, to)
	} else {
		err = h.store.Copy(c.Context(), c.uid, from, to)
	}
	if errors.Is(err, ErrNothing) && earlier == 0 {
		return nil
	}
	return to.end(err)
}

func (h *Handler) ending(_ context.Context, w http.ResponseWriter, c call) error {
	done, err := h.takeRead(c)
	if err != nil {
		return err
	}
	defer done()
	ending, err := h.store.openEnding(c.Context(), c.uid)
	if err != nil {
		return err
	}
	defer ending.Close()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.FormatInt(ending.Size(), 10))
	to := &patient{w: w}
	_, err = io.Copy(to, ending)
	return to.end(err)
}

// patient writes to one who may be slow, but not for ever.
type patient struct {
	w     http.ResponseWriter
	begun bool
}

func (p *patient) Write(text []byte) (int, error) {
	_ = http.NewResponseController(p.w).SetWriteDeadline(time.Now().Add(writeTimeout))
	p.begun = true
	return p.w.Write(text)
}

// end an answer. Of one that has begun who reads it must see that it is not whole.
func (p *patient) end(err error) error {
	if err != nil && p.begun {
		panic(http.ErrAbortHandler)
	}
	return err
}

func (h *Handler) append(ctx context.Context, w http.ResponseWriter, c call) error {
	from, err := strconv.Atoi(c.URL.Query().Get(session.ArchiveFrom))
	if err != nil || from < 0 {
		return errFrom
	}
	query := c.URL.Query()
	segment := Segment{Journal: query.Get(session.ArchiveJournal), Previous: query.Get(session.ArchivePrevious),
		From: from, Lines: c.body}
	position, err := h.store.Append(ctx, c.uid, segment)
	if err != nil {
		return err
	}
	answer.Write(w, position, nil)
	return nil
}

// refusal of what is not taken; any other error is as it is.
func refusal(err error) error {
	switch {
	case errors.Is(err, ErrNothing):
		return answer.NotFound
	case errors.Is(err, ErrMalformed), errors.Is(err, ErrNoEnding):
		return answer.Refuse(http.StatusUnprocessableEntity, err.Error())
	case errors.Is(err, ErrOtherJournal):
		return answer.Refuse(http.StatusConflict, err.Error())
	case errors.Is(err, ErrSuperseded):
		return answer.Refuse(http.StatusForbidden, err.Error())
	case errors.Is(err, ErrFull), errors.Is(err, ErrOwnerFull):
		return answer.Refuse(http.StatusRequestEntityTooLarge, err.Error())
	}
	return err
}

// aside makes room for a journal that began anew.
func (h *Handler) aside(ctx context.Context, w http.ResponseWriter, c call) error {
	if err := h.store.Aside(ctx, c.uid); err != nil {
		return err
	}
	answer.Write(w, session.ArchivePosition{}, nil)
	return nil
}

func (h *Handler) end(ctx context.Context, w http.ResponseWriter, c call) error {
	if err := h.store.End(ctx, c.uid, c.attempt, c.body); err != nil {
		return err
	}
	answer.Write(w, map[string]bool{"success": true}, nil)
	return nil
}
