package handover

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/parley-dev/parley/api/session"
)

// Model returns the sealed model settings of the session. It returns nil if the settings are
// unchanged since the start, or if the archive is too old to store model settings.
func (a *Archive) Model(ctx context.Context) (sealed []byte, err error) {
	err = a.read(ctx, http.MethodGet, session.ArchiveModel, session.MaxModel, func(body io.Reader) error {
		sealed, err = io.ReadAll(body)
		return err
	})
	if errors.Is(err, errNotFound) {
		return nil, nil
	}
	return sealed, err
}
