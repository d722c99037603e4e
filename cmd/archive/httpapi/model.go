package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/parley-dev/parley/api/session"
)

var errNoModel = errors.New("the body must be sealed model settings")

// setModel stores the encrypted ("sealed") model settings of a session. Only the manager calls it.
func (h *handler) setModel(ctx context.Context, c call) (any, error) {
	if len(c.body) == 0 || len(c.body) > session.MaxModel {
		return nil, errNoModel
	}
	return success, h.store.SetModel(ctx, c.uid, c.body)
}

func (h *handler) model(_ context.Context, w http.ResponseWriter, c call) error {
	return h.copyObject(w, "application/octet-stream", func() (io.ReadCloser, int64, error) {
		return h.store.Model(c.Context(), c.uid)
	})
}
