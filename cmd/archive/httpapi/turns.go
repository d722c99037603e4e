package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

const (
	// maxTurnBody limits the bytes of a report about a turn.
	maxTurnBody = 8 << 10
	// reportRate and reportBurst limit the reports of a session, because the manager writes a
	// status and an event for each report. After a burst of 20 reports, a session can send one
	// report every three seconds.
	reportRate, reportBurst = 1.0 / 3, 20
	// maxTurnReaders limits the concurrent requests for the list of outcomes. A low limit suffices,
	// because only one manager is active, and only the manager requests the list.
	maxTurnReaders = 8
)

var (
	errReaders = answer.Later(http.StatusTooManyRequests, "Too many requests in flight; retry later", time.Second)
	errWait    = answer.Refuse(http.StatusUnprocessableEntity, "wait must be a number of seconds, at most "+
		strconv.Itoa(session.MaxTurnWait))
)

func (h *handler) setTurn(ctx context.Context, c call) (any, error) {
	var report session.TurnReport
	if len(c.body) > maxTurnBody || json.Unmarshal(c.body, &report) != nil {
		return nil, errNoTurn
	}
	turn := session.BoundTurn(report.Turn)
	if report.Turn != nil && turn == nil {
		return nil, errNoTurn
	}
	if err := h.reports.Count(c.uid, 1); err != nil {
		return nil, err
	}
	name, err := h.conversations.NameOf(ctx, c.uid)
	switch {
	case err != nil:
		return nil, answer.Unavailable
	case name == "":
		return nil, errGone
	}
	return map[string]bool{"success": true}, h.store.SetTurn(ctx, c.uid, name, c.attempt, turn)
}

// turns sends the outcomes of all sessions to the manager. If the request names the current ETag,
// the response waits for a change of the outcomes.
func (h *handler) turns(w http.ResponseWriter, r *http.Request) {
	keys, err := h.public()
	if err != nil {
		answer.Write(w, nil, answer.Unavailable)
		return
	}
	if session.VerifyToken(keys, r.Header.Get(session.TokenHeader), session.AudienceTurns, session.TurnsSubject,
		time.Now()) != nil {
		answer.Write(w, nil, answer.Unauthorized)
		return
	}
	wait := 0
	if text := r.URL.Query().Get(session.ArchiveWait); text != "" {
		if wait, err = strconv.Atoi(text); err != nil || wait < 0 || wait > session.MaxTurnWait {
			answer.Write(w, nil, errWait)
			return
		}
	}
	if !h.turnReaders.TryAcquire(1) {
		answer.Write(w, nil, errReaders)
		return
	}
	defer h.turnReaders.Release(1)
	h.sendTurns(w, r, r.URL.Query().Get(session.ArchiveAfter), time.Duration(wait)*time.Second)
}

func (h *handler) sendTurns(w http.ResponseWriter, r *http.Request, after string, wait time.Duration) {
	before := r.Header.Get("If-None-Match")
	unquoted, _ := strconv.Unquote(before)
	list, tag, err := h.store.Turns(r.Context(), unquoted, after, wait)
	switch tag = strconv.Quote(tag); {
	case r.Context().Err() != nil: // the client is gone
	case err != nil:
		logf.FromContext(r.Context()).WithName("archive").Error(err, "Cannot list the outcomes of turns")
		answer.Write(w, nil, errFailed)
	case tag == before:
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("ETag", tag)
		answer.Write(w, list, nil)
	}
}
