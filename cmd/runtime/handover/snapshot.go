package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/parley-dev/parley/api/session"
)

// Errors of snapshots.
var (
	// ErrNoSnapshot says that the archive has no snapshot.
	ErrNoSnapshot = errors.New("the archive has no snapshot of these files")
	// ErrOtherSnapshot says that the archive has a snapshot of an earlier attempt. An attempt must
	// not replace a snapshot that it did not restore.
	ErrOtherSnapshot = errors.New("the archive has an earlier snapshot, which was not restored")
	// ErrSnapshotTooLarge says that the archive has no room for a snapshot.
	ErrSnapshotTooLarge = errors.New("the snapshot is too large for the archive, or the user's storage limit is reached")
)

// Final reports whether an error is permanent: the archive will refuse every snapshot of this
// attempt.
func Final(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, ErrOtherSnapshot) ||
		errors.Is(err, errRefused) && !errors.Is(err, ErrSnapshotTooLarge)
}

// Attempt returns the number of the session's attempt.
func (a *Archive) Attempt() int { return a.attempt }

// maxSnapshot is the maximum size in bytes of the description of a snapshot.
const maxSnapshot = 1 << 16

// Claim makes the archive refuse further writes from earlier attempts. The pods of these attempts
// may still run on a disconnected node. Claim returns the description of the archived snapshot.
func (a *Archive) Claim(ctx context.Context) (found session.Snapshot, err error) {
	var claimed session.ArchiveClaimed
	err = a.retrySnapshot(ctx, func(ctx context.Context) error {
		return a.read(ctx, http.MethodPost, session.ArchiveClaim, maxSnapshot, decodeInto(&claimed))
	})
	switch {
	case err != nil:
		return found, err
	case claimed.Snapshot != nil:
		return *claimed.Snapshot, nil
	}
	return a.Snapshot(ctx)
}

// Snapshot returns the description of the archived snapshot.
func (a *Archive) Snapshot(ctx context.Context) (found session.Snapshot, err error) {
	err = a.retrySnapshot(ctx, func(ctx context.Context) error {
		return a.read(ctx, http.MethodGet, session.ArchiveSnapshot, maxSnapshot, decodeInto(&found))
	})
	return found, err
}

func decodeInto(value any) func(io.Reader) error {
	return func(body io.Reader) error { return json.NewDecoder(body).Decode(value) }
}

// Chunk returns a chunk of a snapshot.
func (a *Archive) Chunk(ctx context.Context, id string, index int) (chunk []byte, err error) {
	err = a.retrySnapshot(ctx, func(ctx context.Context) error {
		const maxBytes = session.SnapshotChunk + session.SnapshotOverhead
		return a.read(ctx, http.MethodGet, chunkPath(id, index), maxBytes+1, func(body io.Reader) error {
			chunk, err = io.ReadAll(body)
			return err
		})
	})
	return chunk, err
}

// PutChunk uploads a chunk.
func (a *Archive) PutChunk(ctx context.Context, id string, index int, chunk []byte) error {
	return a.retrySnapshot(ctx, func(ctx context.Context) error {
		return a.send(ctx, chunkPath(id, index), nil, chunk)
	})
}

// CommitSnapshot makes an uploaded snapshot the current snapshot. The parameter replaces is the ID
// of the previous snapshot, or empty if there is none.
func (a *Archive) CommitSnapshot(ctx context.Context, snapshot session.Snapshot, replaces string) error {
	text, err := json.Marshal(snapshot)
	if err != nil {
		return err
	}
	return a.retrySnapshot(ctx, func(ctx context.Context) error {
		return a.send(ctx, session.ArchiveSnapshot, url.Values{session.ArchiveReplaces: {replaces}}, text)
	})
}

func chunkPath(id string, index int) string {
	return session.ArchiveSnapshot + "/" + url.PathEscape(id) + "/" + strconv.Itoa(index)
}

func (a *Archive) send(ctx context.Context, path string, query url.Values, body []byte) error {
	response, err := a.ask(ctx, http.MethodPost, path, query, body)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func (a *Archive) read(ctx context.Context, method, path string, maxBytes int64,
	decode func(io.Reader) error) error {
	response, err := a.ask(ctx, method, path, nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return decode(io.LimitReader(response.Body, maxBytes))
}

func (a *Archive) retrySnapshot(ctx context.Context, try func(context.Context) error) error {
	return retry(ctx, firstShortBackOff, lastBackOff, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		err := try(ctx)
		switch {
		case errors.Is(err, errNotFound):
			return ErrNoSnapshot
		case errors.Is(err, errOtherJournal):
			return ErrOtherSnapshot
		case errors.Is(err, errFull):
			return fmt.Errorf("%w: %w", ErrSnapshotTooLarge, err)
		}
		return err
	}, ErrGone, errRefused, ErrNoSnapshot, ErrOtherSnapshot)
}
