package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

// errNoLedger says that the session has not connected to the archive yet.
var errNoLedger = errors.New("the archive is not connected")

func (s *run) reportCosts(ctx context.Context, report session.SpendReport) (session.SpendGrant, error) {
	archive := get(s, &s.archive)
	if archive == nil {
		return session.SpendGrant{}, errNoLedger
	}
	grant, err := archive.Spend(ctx, report)
	if handover.SpendRefused(err) {
		err = fmt.Errorf("%w: %w", modelproxy.ErrLedgerClosed, err)
	}
	return grant, err
}

// reportLastCosts sends the last report of costs. The archive then releases the session's
// reservation.
func (s *run) reportLastCosts(ctx context.Context) {
	if err := s.model.Finish(ctx); err != nil && !errors.Is(err, handover.ErrGone) {
		s.log.Error("reporting the last costs of the session failed", "error", err)
	}
}

func (s *run) nearLimit(text string) {
	s.log.Warn("a spending limit is near", "limit", text)
	if d := get(s, &s.driver); d != nil {
		d.Notice(text + ".")
	}
}
