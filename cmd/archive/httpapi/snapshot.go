package httpapi

import (
	"context"
	"io"
	"net/http"
	"strconv"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/store"
)

var success = map[string]bool{"success": true}

// claim makes the archive refuse further writes of earlier attempts, and returns the snapshot. An
// attempt calls it before it restores the data of earlier attempts.
func (h *handler) claim(ctx context.Context, c call) (any, error) {
	if err := h.store.Claim(ctx, c.uid, c.attempt); err != nil {
		return nil, err
	}
	claimed := session.ArchiveClaimed{}
	if found, err := h.store.Snapshot(ctx, c.uid); err == nil {
		claimed.Snapshot = &found
	}
	return claimed, nil
}

func (h *handler) snapshot(ctx context.Context, c call) (any, error) {
	return h.store.Snapshot(ctx, c.uid)
}

func (h *handler) commitSnapshot(ctx context.Context, c call) (any, error) {
	return success, h.store.CommitSnapshot(ctx, c.uid, c.attempt, c.URL.Query().Get(session.ArchiveReplaces), c.body)
}

func (c call) chunkIndex() (int, error) {
	index, err := strconv.Atoi(c.PathValue("index"))
	if err != nil {
		return 0, store.ErrNoSnapshot
	}
	return index, nil
}

func (h *handler) putChunk(ctx context.Context, c call) (any, error) {
	index, err := c.chunkIndex()
	if err != nil {
		return nil, err
	}
	return success, h.store.PutChunk(ctx, c.uid, c.attempt, c.PathValue("id"), index, c.body)
}

func (h *handler) chunk(_ context.Context, w http.ResponseWriter, c call) error {
	index, err := c.chunkIndex()
	if err != nil {
		return err
	}
	return h.copyObject(w, "application/octet-stream", func() (io.ReadCloser, int64, error) {
		return h.store.Chunk(c.Context(), c.uid, c.PathValue("id"), index)
	})
}
