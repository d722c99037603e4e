package handover

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/parley-dev/parley/api/session"
)

// maxGrant bounds the size of a SpendGrant in JSON, in bytes.
const maxGrant = 8 << 10

// Spend sends a report of costs to the archive's ledger. It returns the amount that the ledger
// reserves for the session.
func (a *Archive) Spend(ctx context.Context, report session.SpendReport) (grant session.SpendGrant, err error) {
	body, err := json.Marshal(report)
	if err != nil {
		return grant, err
	}
	response, err := a.ask(ctx, http.MethodPost, session.ArchiveSpend, nil, body)
	if err != nil {
		return grant, err
	}
	defer response.Body.Close()
	err = json.NewDecoder(io.LimitReader(response.Body, maxGrant)).Decode(&grant)
	return grant, err
}

// SpendRefused reports whether the error of a cost report is final: the archive will refuse all
// later cost reports, too. It returns false if the archive is too old to accept cost reports,
// because that archive may be upgraded soon.
func SpendRefused(err error) bool { return errors.Is(err, ErrGone) || errors.Is(err, errRefused) }
