package handover

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

const (
	// settleTime is how long an outcome must stay unchanged before it is reported. A question that the
	// user answers immediately is therefore not reported.
	settleTime = time.Second
	// repeatInterval is the time after which an unchanged outcome is reported again, in case the
	// archive lost it.
	repeatInterval = 5 * time.Minute
)

// Outcome returns the outcome of the last turn if a user has to act on it, and otherwise nil.
type Outcome func() (*v1alpha1.ConversationTurn, error)

// TurnReporter reports each new outcome of the session's last turn to the archive.
type TurnReporter struct {
	archive *Archive
	journal *journal.Journal
	outcome Outcome
	// read is the number of events in the journal when the outcome was last determined.
	read int
	// reported is the outcome that the archive holds. It is certain only if known is set.
	reported v1alpha1.ConversationTurn
	known    bool
	// refused is the final error. After this error, no more outcomes are reported.
	refused error
}

// ReportTurns returns a TurnReporter for a journal. It sets known if the journal is empty in the
// first attempt of a session: the archive then holds no outcome yet, and the field reported is
// empty too.
func (a *Archive) ReportTurns(j *journal.Journal, outcome Outcome) *TurnReporter {
	return &TurnReporter{archive: a, journal: j, outcome: outcome, known: a.attempt < 2 && j.Len() == 0}
}

// Run reports outcomes until ctx ends or the archive refuses a report.
func (r *TurnReporter) Run(ctx context.Context) {
	if !r.known { // the message that woke the session may begin a turn immediately
		r.settle(ctx)
	}
	for ctx.Err() == nil {
		_ = retry(ctx, firstBackOff, lastBackOff, func(ctx context.Context) error {
			err := r.report(ctx)
			if err != nil && r.refused == nil && ctx.Err() == nil {
				r.archive.log.Warn("reporting the outcome of the turn failed; retrying", "error", err)
			}
			return err
		}, ErrGone, errRefused)
		if r.refused != nil {
			return
		}
		r.await(ctx)
	}
}

// await waits until the outcome may have changed, or must be reported again.
func (r *TurnReporter) await(ctx context.Context) {
	var repeat <-chan time.Time
	if r.reported != (v1alpha1.ConversationTurn{}) {
		timer := time.NewTimer(repeatInterval)
		defer timer.Stop()
		repeat = timer.C
	}
	select {
	case <-r.journal.More(r.read):
		r.settle(ctx)
	case <-repeat:
		r.known = false
	case <-ctx.Done():
	}
}

func (r *TurnReporter) settle(ctx context.Context) {
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
	}
}

// Finish reports the last outcome and retries until ctx ends. Run must have returned.
func (r *TurnReporter) Finish(ctx context.Context) (err error) {
	if r.refused == nil { // otherwise, report() has already logged the refusal
		err = retry(ctx, firstShortBackOff, lastShortBackOff, r.report, ErrGone, errRefused)
	}
	return err
}

func (r *TurnReporter) report(ctx context.Context) error {
	events := r.journal.Len()
	turn, err := r.outcome()
	if err != nil {
		return err
	}
	r.read = events
	var now v1alpha1.ConversationTurn
	if turn != nil {
		now = *turn
	}
	if r.known && r.reported == now {
		return nil
	}
	body, err := json.Marshal(session.TurnReport{Turn: turn})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := r.archive.ask(ctx, http.MethodPost, session.ArchiveTurn, nil, body)
	switch {
	case errors.Is(err, ErrGone) || errors.Is(err, errRefused):
		r.refused = err
		r.archive.log.Info("outcomes of turns are no longer reported", "reason", err)
		return err
	case err != nil:
		return err
	}
	r.reported, r.known = now, true
	return response.Body.Close()
}
