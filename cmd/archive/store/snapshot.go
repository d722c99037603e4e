package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// A snapshot is a list of chunks in snapshot/<id>/ and a manifest, which is written last. Chunks
// without a manifest belong to an upload that is in progress or was interrupted.
const (
	snapshotName = "/snapshot.json"
	snapshotDir  = "/snapshot/"
)

const (
	// maxChunk is the maximum size of a chunk, and maxManifest is the maximum size of a manifest,
	// in bytes. maxChunks is the maximum number of chunks of a snapshot.
	maxChunk    = session.SnapshotChunk + session.SnapshotOverhead
	maxChunks   = session.MaxSnapshot/session.SnapshotChunk + 1
	maxManifest = 4 << 10
	// maxSnapshots is the maximum size of all chunks of one Conversation, in bytes. It has room for
	// the current snapshot, the next snapshot and interrupted uploads.
	maxSnapshots = 3 * session.MaxSnapshot
)

var (
	// ErrOtherSnapshot refuses to replace the stored snapshot. An attempt may replace it only if
	// the attempt has restored or written it. Otherwise, the files in it would be lost.
	ErrOtherSnapshot = errors.New("cannot replace the stored snapshot: this attempt neither restored nor wrote it")
	// ErrNoSnapshot refuses an invalid snapshot or chunk.
	ErrNoSnapshot = errors.New("the snapshot is invalid, or some of its chunks are missing")
)

// chunkKey returns the key of a chunk, or ErrNoSnapshot for an invalid ID or index.
func chunkKey(uid, id string, index int) (string, error) {
	if _, valid := session.SnapshotAttempt(id); !valid || index < 0 || index >= maxChunks {
		return "", ErrNoSnapshot
	}
	return fmt.Sprintf("%s%s%s/%04d", uid, snapshotDir, id, index), nil
}

// Claim makes the store refuse further writes of earlier attempts.
func (s *Store) Claim(ctx context.Context, uid string, attempt int) error {
	return retryChanged(func() error { return s.claim(ctx, uid, attempt) })
}

// PutChunk stores a chunk of a snapshot of this attempt. It removes no chunks of other snapshots,
// because an upload that seems interrupted may be committed at this moment.
func (s *Store) PutChunk(ctx context.Context, uid string, attempt int, id string, index int, chunk []byte) error {
	key, err := chunkKey(uid, id, index)
	if err != nil {
		return err
	}
	if of, _ := session.SnapshotAttempt(id); of != attempt || len(chunk) > maxChunk {
		return ErrNoSnapshot
	}
	if err := s.Claim(ctx, uid, attempt); err != nil {
		return err
	}
	size := s.quota.usageOf(uid).snapshot + int64(len(chunk))
	switch {
	case size > maxSnapshots:
		return ErrFull
	case !s.quota.allows(uid, withSnapshot(size)):
		return ErrOwnerFull
	}
	if err := s.bucket.put(ctx, key, "application/octet-stream", chunk, condition{}); err != nil {
		return fmt.Errorf("write a chunk: %w", err)
	}
	s.quota.set(uid, withSnapshot(size))
	return nil
}

// chunks returns the chunks of all snapshots of a Conversation, by snapshot ID.
func (s *Store) chunks(ctx context.Context, uid string) (map[string][]entry, error) {
	found := map[string][]entry{}
	err := s.bucket.list(ctx, uid+snapshotDir, func(e entry) {
		id, _, _ := strings.Cut(strings.TrimPrefix(e.key, uid+snapshotDir), "/")
		found[id] = append(found[id], e)
	})
	if err != nil {
		return nil, fmt.Errorf("list the chunks: %w", err)
	}
	return found, nil
}

// removeChunks removes the chunks of all snapshots except the current snapshot and snapshots of
// later attempts. A later attempt may upload chunks while the request of this attempt is still
// served.
func (s *Store) removeChunks(ctx context.Context, uid string, attempt int, current string) error {
	found, err := s.chunks(ctx, uid)
	if err != nil {
		return err
	}
	kept := int64(0)
	for id, chunks := range found {
		if of, _ := session.SnapshotAttempt(id); of > attempt || id == current {
			kept += total(chunks)
			continue
		}
		for _, chunk := range chunks {
			if err := s.bucket.remove(ctx, chunk.key); err != nil {
				return fmt.Errorf("remove a chunk: %w", err)
			}
		}
	}
	s.quota.set(uid, withSnapshot(kept))
	return nil
}

func total(chunks []entry) (size int64) {
	for _, chunk := range chunks {
		size += chunk.size
	}
	return size
}

// snapshot returns the manifest and its version, or ErrNothing.
func (s *Store) snapshot(ctx context.Context, uid string) (found session.Snapshot, version string, err error) {
	text, version, err := readAll(ctx, s.bucket, uid+snapshotName)
	switch {
	case errors.Is(err, errNotFound):
		return found, "", ErrNothing
	case err != nil:
		return found, "", fmt.Errorf("read the snapshot: %w", err)
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return found, "", fmt.Errorf("read the snapshot: %w", err)
	}
	return found, version, nil
}

// Snapshot returns the snapshot of a Conversation, or ErrNothing.
func (s *Store) Snapshot(ctx context.Context, uid string) (session.Snapshot, error) {
	found, _, err := s.snapshot(ctx, uid)
	return found, err
}

// Chunk returns a chunk and its size, or ErrNothing.
func (s *Store) Chunk(ctx context.Context, uid, id string, index int) (io.ReadCloser, int64, error) {
	key, err := chunkKey(uid, id, index)
	if err != nil {
		return nil, 0, err
	}
	return s.openObject(ctx, key, "a chunk")
}

// CommitSnapshot makes a new snapshot the current snapshot. The chunks of the new snapshot must be
// complete. The parameter replaces must be the ID of the snapshot that was current before.
// Afterwards, CommitSnapshot removes the chunks of all other snapshots, except snapshots of later
// attempts. A second call for the same snapshot changes nothing.
func (s *Store) CommitSnapshot(ctx context.Context, uid string, attempt int, replaces string, manifest []byte) error {
	var next session.Snapshot
	if len(manifest) > maxManifest || json.Unmarshal(manifest, &next) != nil {
		return ErrNoSnapshot
	}
	if _, valid := session.SnapshotAttempt(next.ID); !valid || next.Chunks < 1 || next.Chunks > maxChunks {
		return ErrNoSnapshot
	}
	err := retryChanged(func() error {
		current, version, err := s.snapshot(ctx, uid)
		if err != nil && !errors.Is(err, ErrNothing) {
			return err
		}
		if err := s.claim(ctx, uid, attempt); err != nil {
			return err
		}
		if current.ID != replaces && current.ID != next.ID {
			return ErrOtherSnapshot
		}
		if err := s.checkChunks(ctx, uid, next); err != nil {
			return err
		}
		err = s.bucket.put(ctx, uid+snapshotName, "application/json", manifest,
			condition{absent: version == "", version: version})
		if err != nil {
			return fmt.Errorf("write the snapshot: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.removeChunks(ctx, uid, attempt, next.ID)
}

func (s *Store) checkChunks(ctx context.Context, uid string, of session.Snapshot) error {
	found, err := s.chunks(ctx, uid)
	if err != nil {
		return err
	}
	chunks := found[of.ID]
	if len(chunks) != of.Chunks || total(chunks) != of.Size {
		return ErrNoSnapshot
	}
	for _, chunk := range chunks {
		name := chunk.key[strings.LastIndex(chunk.key, "/")+1:]
		if index, err := strconv.Atoi(name); err != nil || index >= of.Chunks {
			return ErrNoSnapshot
		}
	}
	return nil
}

// sweepChunks removes the chunks of interrupted uploads. An upload counts as interrupted if two
// sweeps in a row find its chunks, and its snapshot is not the current one. A running upload takes
// much less time than the interval of sweeps.
func (s *Store) sweepChunks(ctx context.Context, ids map[string]map[string]bool) error {
	before := s.leftovers
	s.leftovers = map[string]bool{}
	var failed []error
	for uid, found := range ids {
		current, _, err := s.snapshot(ctx, uid)
		if err != nil && !errors.Is(err, ErrNothing) {
			failed = append(failed, fmt.Errorf("%s: %w", uid, err))
			continue
		}
		for id := range found {
			key := uid + snapshotDir + id
			switch {
			case id == current.ID:
			case !before[key]:
				s.leftovers[key] = true
			default:
				failed = append(failed, s.removeSnapshot(ctx, uid, id))
			}
		}
	}
	return errors.Join(failed...)
}

func (s *Store) removeSnapshot(ctx context.Context, uid, id string) error {
	found, err := s.chunks(ctx, uid)
	if err != nil {
		return err
	}
	for _, chunk := range found[id] {
		if err := s.bucket.remove(ctx, chunk.key); err != nil {
			return fmt.Errorf("remove a chunk: %w", err)
		}
	}
	s.quota.set(uid, func(u *usage) { u.snapshot = max(0, u.snapshot-total(found[id])) })
	return nil
}
