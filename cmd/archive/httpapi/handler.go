// Package httpapi is the archive's HTTP API. Sessions upload their data, and facades read it.
package httpapi

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/deadline"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

const (
	// conversationReads, ownerReads and allReads limit the concurrent responses per Conversation,
	// per owner and in total. The limits can be high, because a response takes little memory, even
	// if its client is slow.
	conversationReads, ownerReads, allReads = 32, 128, 2048
	requestTimeout                          = 30 * time.Second
	// writeTimeout limits the time in which a client must read each part of a response.
	writeTimeout = 30 * time.Second
)

// Health serves /alive and /ready.
func Health(ready func(context.Context) error) http.Handler {
	health := &answer.Health{Check: ready}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /alive", answer.Alive)
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if !health.Ready() {
			answer.Write(w, nil, notReady)
			return
		}
		answer.Alive(w, r)
	})
	return mux
}

// Conversations finds existing Conversations.
type Conversations interface {
	// OwnerOf returns "" for an unknown Conversation.
	OwnerOf(ctx context.Context, uid string) (owner string, err error)
	// NameOf returns the namespace and name of an existing Conversation, separated by a slash.
	NameOf(ctx context.Context, uid string) (name string, err error)
	// CheckAttempt returns nil if an attempt of a Conversation is allowed to use the archive, else
	// the reason for the refusal.
	CheckAttempt(ctx context.Context, uid string, attempt int) error
}

// serveFunc serves a call. An error is sent to the client.
type serveFunc func(ctx context.Context, w http.ResponseWriter, c call) error

type handler struct {
	store         *store.Store
	public        func() ([]ed25519.PublicKey, error)
	conversations Conversations
	// reads is the budget for responses per Conversation. owners is the budget for responses and
	// request bodies per owner.
	reads, owners *limits.Budget
	// reports is the budget for each Conversation's reports about its turns.
	reports *limits.Budget
	// spending is the budget for the rate of each Conversation's cost reports, and for the size of
	// their bodies.
	spending                  *limits.Budget
	turnReaders, usageReaders *semaphore.Weighted
}

// NewHandler serves a store to clients with a valid token. public() returns the keys
// that verify tokens.
func NewHandler(store *store.Store, conversations Conversations,
	public func() ([]ed25519.PublicKey, error)) http.Handler {
	h := &handler{store: store, public: public, conversations: conversations,
		turnReaders: semaphore.NewWeighted(maxTurnReaders), usageReaders: semaphore.NewWeighted(maxUsageReaders),
		reports:  limits.New(limits.Options{Rate: reportRate, Burst: reportBurst}),
		spending: limits.New(limits.Options{Rate: spendRate, Burst: spendBurst, MaxBody: maxSpendBody}),
		reads:    limits.New(limits.Options{Streams: limits.Bounds{User: conversationReads}}),
		owners: limits.New(limits.Options{MaxBody: session.MaxArchived,
			Streams: limits.Bounds{User: ownerReads, All: allReads}})}
	at, mux := session.ArchiveRoot+"{uid}", http.NewServeMux()
	mux.HandleFunc("GET "+at, h.authenticated(answered(h.position)))
	mux.HandleFunc("GET "+at+session.ArchiveEvents, h.authenticated(h.limited(h.events)))
	mux.HandleFunc("POST "+at+session.ArchiveEvents, h.authenticated(answered(h.append)))
	mux.HandleFunc("POST "+at+session.ArchiveNewJournal, h.authenticated(answered(h.startJournal)))
	mux.HandleFunc("GET "+at+session.ArchiveEnd, h.authenticated(h.limited(h.ending)))
	mux.HandleFunc("POST "+at+session.ArchiveEnd, h.authenticated(answered(h.end)))
	mux.HandleFunc("POST "+at+session.ArchiveClaim, h.authenticated(answered(h.claim)))
	mux.HandleFunc("GET "+at+session.ArchiveSnapshot, h.authenticated(answered(h.snapshot)))
	mux.HandleFunc("POST "+at+session.ArchiveSnapshot, h.authenticated(answered(h.commitSnapshot)))
	chunk := at + session.ArchiveSnapshot + "/{id}/{index}"
	mux.HandleFunc("GET "+chunk, h.authenticated(h.limited(h.chunk)))
	mux.HandleFunc("POST "+chunk, h.authenticated(answered(h.putChunk)))
	mux.HandleFunc("POST "+at+session.ArchiveTurn, h.authenticated(answered(h.setTurn)))
	mux.HandleFunc("GET "+at+session.ArchiveModel, h.authenticated(h.model))
	mux.HandleFunc("POST "+at+session.ArchiveModel, h.authenticatedFor(session.AudienceModel, answered(h.setModel)))
	mux.HandleFunc("POST "+at+session.ArchiveSpend, h.authenticated(answered(h.spendMoney)))
	mux.HandleFunc("GET "+session.ArchiveTurns, h.turns)
	mux.HandleFunc("GET "+session.ArchiveUsage, h.usage)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { answer.Write(w, nil, answer.NotFound) })
	return mux
}

// answered returns a serveFunc that calls do() and sends the result as JSON.
func answered(do func(context.Context, call) (any, error)) serveFunc {
	return func(ctx context.Context, w http.ResponseWriter, c call) error {
		body, err := do(ctx, c)
		if err == nil {
			answer.Write(w, body, nil)
		}
		return err
	}
}

// call is an authenticated request about a Conversation.
type call struct {
	*http.Request
	uid, owner string
	// attempt is the session's attempt in the token or, for tokens of older versions, in the query.
	// It is zero if the request is not from a session.
	attempt int
	// spend says who pays for the session. It is nil for sessions of older versions.
	spend *session.SpendClaims
	// aboutCosts is set if the request is about costs, which outlive the Conversation. deleted is
	// set in such a request if the Conversation no longer exists.
	aboutCosts, deleted bool
	body                []byte
}

func (h *handler) authenticated(do serveFunc) http.HandlerFunc {
	return h.authenticatedFor(session.AudienceArchive, do)
}

// authenticatedFor serves a request about a Conversation if the request has a token for this
// Conversation and audience. The Conversation must exist, except for reports of costs.
func (h *handler) authenticatedFor(audience string, do serveFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := call{Request: r, uid: r.PathValue("uid"), aboutCosts: strings.HasSuffix(r.Pattern, session.ArchiveSpend)}
		c.attempt, _ = strconv.Atoi(r.URL.Query().Get(session.ArchiveAttempt))
		err := h.authenticate(&c, audience)
		if err == nil && r.Method == http.MethodPost {
			var done func()
			if c.body, done, err = h.readBody(c); err == nil {
				defer done()
			}
		}
		if err != nil {
			answer.TurnAway(w, r, refuse(c, err))
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTimeout)
		defer cancel()
		if err := do(ctx, w, c); err != nil {
			answer.Write(w, nil, refuse(c, err))
		}
	}
}

// readBody reads the body of a call. Cost reports have their own limit on request bodies and do not
// wait for the owner's uploads, because model calls wait for these reports.
func (h *handler) readBody(c call) (body []byte, done func(), err error) {
	if c.aboutCosts {
		return h.spending.ReadBody(c.Request, c.uid)
	}
	if body, done, err = h.owners.ReadBody(c.Request, c.owner); err == nil {
		h.store.SetOwner(c.uid, c.owner)
	}
	return body, done, err
}

// authenticate verifies the token of a call, and sets the call's attempt, payer and owner. It
// refuses an attempt that has ended.
func (h *handler) authenticate(c *call, audience string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), requestTimeout)
	defer cancel()
	keys, err := h.public()
	if err != nil {
		return answer.Unavailable
	}
	var claims session.Claims
	token := c.Header.Get(session.TokenHeader)
	if audience == session.AudienceArchive {
		claims, err = session.VerifyArchiveToken(keys, token, c.uid, time.Now())
	} else {
		err = session.VerifyToken(keys, token, audience, c.uid, time.Now())
	}
	if err != nil {
		return answer.Unauthorized
	}
	c.attempt, c.spend = cmp.Or(claims.Attempt, c.attempt), claims.Spend
	switch c.owner, err = h.conversations.OwnerOf(ctx, c.uid); {
	case err != nil:
		return answer.Unavailable
	case c.owner == "" && c.aboutCosts && c.spend != nil:
		c.owner, c.deleted = c.spend.Owner, true
		return nil
	case c.owner == "":
		return errGone
	case c.attempt > 0:
		return h.conversations.CheckAttempt(ctx, c.uid, c.attempt)
	}
	return nil
}

// number parses a query parameter; zero if the parameter is missing.
func (c call) number(name string) (n int, err error) {
	if text := c.URL.Query().Get(name); text != "" {
		n, err = strconv.Atoi(text)
	}
	if err != nil || n < 0 {
		return 0, errNumber
	}
	return n, nil
}

func (h *handler) position(ctx context.Context, c call) (any, error) {
	return h.store.Position(ctx, c.uid)
}

// limited counts a response as an open stream of the owner and of the Conversation until the
// response is sent. It refuses the request if either has too many streams.
func (h *handler) limited(do serveFunc) serveFunc {
	return func(ctx context.Context, w http.ResponseWriter, c call) error {
		ofOwner, err := h.owners.Take(c.owner, limits.Streams)
		if err != nil {
			return err
		}
		defer ofOwner()
		ofConversation, err := h.reads.Take(c.uid, limits.Streams)
		if err != nil {
			return err
		}
		defer ofConversation()
		return do(ctx, w, c)
	}
}

// events sends the events from the given ID on. The facade requests them, and a session requests
// them after it lost its workspace.
func (h *handler) events(_ context.Context, w http.ResponseWriter, c call) error {
	from, err := c.number(session.ArchiveFrom)
	if err != nil {
		return err
	}
	earlier, err := c.number(session.ArchiveEarlier)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/jsonl")
	to := &deadline.Writer{ResponseWriter: w, Timeout: writeTimeout}
	err = h.store.Copy(c.Context(), c.uid, earlier, from, to)
	if errors.Is(err, store.ErrNothing) && earlier == 0 {
		return nil
	}
	return end(to, err)
}

func (h *handler) ending(_ context.Context, w http.ResponseWriter, c call) error {
	return h.copyObject(w, "application/json", func() (io.ReadCloser, int64, error) {
		return h.store.Ending(c.Context(), c.uid)
	})
}

func (h *handler) copyObject(w http.ResponseWriter, contentType string,
	open func() (io.ReadCloser, int64, error)) error {
	object, size, err := open()
	if err != nil {
		return err
	}
	defer object.Close()
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	to := &deadline.Writer{ResponseWriter: w, Timeout: writeTimeout}
	_, err = io.Copy(to, object)
	return end(to, err)
}

// end ends a response. If an error occurs after the first byte, end aborts the connection, so that
// the client sees that the response is incomplete.
func end(to *deadline.Writer, err error) error {
	if err != nil && to.Begun {
		panic(http.ErrAbortHandler)
	}
	return err
}

func (h *handler) append(ctx context.Context, c call) (any, error) {
	query := c.URL.Query()
	from, err := strconv.Atoi(query.Get(session.ArchiveFrom))
	if err != nil || from < 0 {
		return nil, errNumber
	}
	return h.store.Append(ctx, c.uid, c.attempt, store.Batch{Journal: query.Get(session.ArchiveJournal),
		Previous: query.Get(session.ArchivePrevious), From: from, Lines: c.body})
}

func (h *handler) startJournal(ctx context.Context, c call) (any, error) {
	return session.ArchivePosition{}, h.store.StartJournal(ctx, c.uid, c.attempt)
}

func (h *handler) end(ctx context.Context, c call) (any, error) {
	return success, h.store.End(ctx, c.uid, c.attempt, c.body)
}
