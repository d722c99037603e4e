package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

const (
	// maxSpendBody limits the bytes of a report of costs.
	maxSpendBody = 256 << 10
	// spendRate limits the reports of a session per second. spendBurst limits the reports in a burst.
	// Both are high: a session near its spending limit sends a report for each call of the model, and
	// a model in the cluster may answer many calls per second.
	spendRate, spendBurst = 100, 1000
	maxUsageReaders       = 16
)

// spendMoney records the costs of a session in the ledger and answers with a reservation. The owner
// and the limits come from the signed token. The session of a deleted Conversation can report its
// last costs, but gets no further reservation.
func (h *handler) spendMoney(ctx context.Context, c call) (any, error) {
	var report session.SpendReport
	if c.spend == nil || json.Unmarshal(c.body, &report) != nil {
		return nil, store.ErrNoReport
	}
	if err := h.spending.Count(c.uid, 1); err != nil {
		return nil, err
	}
	if c.deleted {
		report.Want, report.Need = 0, 0
		for _, inFlight := range report.Open {
			report.Need = report.Need.Plus(inFlight)
		}
	}
	granted, err := h.store.Spend(ctx, c.uid, c.attempt, *c.spend, report)
	if refused := granted.Refusal; err == nil && refused != nil {
		refusedReservations.WithLabelValues(c.spend.Namespace, refused.Scope, refused.Period).Inc()
	}
	return granted, err
}

// usage sends the costs of an owner or a namespace to the facade.
func (h *handler) usage(w http.ResponseWriter, r *http.Request) {
	keys, err := h.public()
	if err != nil {
		answer.Write(w, nil, answer.Unavailable)
		return
	}
	if session.VerifyToken(keys, r.Header.Get(session.TokenHeader), session.AudienceUsage, session.UsageSubject,
		time.Now()) != nil {
		answer.Write(w, nil, answer.Unauthorized)
		return
	}
	if !h.usageReaders.TryAcquire(1) {
		answer.Write(w, nil, errReaders)
		return
	}
	defer h.usageReaders.Release(1)
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	query := r.URL.Query()
	usage, err := h.store.Usage(ctx, query.Get(session.UsageOwner), query.Get(session.UsageNamespace),
		query.Get(session.UsageMonth))
	if err != nil {
		answer.Write(w, nil, refuse(call{Request: r}, err))
		return
	}
	answer.Write(w, usage, nil)
}
