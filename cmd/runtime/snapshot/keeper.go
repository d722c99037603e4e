package snapshot

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"strconv"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/cmd/runtime/record"
)

// tries is how many times Take tries to take a snapshot while files keep changing.
const tries = 3

// Keeper saves the session's work in the archive. It is not safe for concurrent use.
type Keeper struct {
	archive *handover.Archive
	key     *Key
	source  Source
	// file is the path of the recorded progress. A later process of the same attempt reads it.
	file string
	progress
	// maxBytes bounds the size of a snapshot. tooLarge is the fingerprint of the files that last
	// exceeded this bound. Take does not try to save these files again.
	maxBytes int64
	tooLarge string
}

type progress struct {
	// Last is the archived snapshot if this attempt saved or restored it. Otherwise, it is empty.
	Last saved `json:"last"`
	// Next is a snapshot for which the archive has not acknowledged CommitSnapshot. The archive may
	// have this snapshot or lack it.
	Next *saved `json:"next,omitempty"`
}

type saved struct {
	Snapshot    session.Snapshot `json:"snapshot"`
	Fingerprint string           `json:"fingerprint"`
	Contents    Contents         `json:"contents"`
}

// NewKeeper returns a Keeper that continues with the recorded progress in file.
func NewKeeper(archive *handover.Archive, key *Key, source Source, file string) *Keeper {
	k := &Keeper{archive: archive, key: key, source: source, file: file, maxBytes: session.MaxSnapshot}
	if text, err := record.Read(file); err == nil && json.Unmarshal(text, &k.progress) != nil {
		k.progress = progress{}
	}
	return k
}

// Take saves the session's work if the work changed since the last snapshot.
func (k *Keeper) Take(ctx context.Context, contents Contents) (err error) {
	contents.Attempt = k.archive.Attempt()
	for range tries {
		if err = k.take(ctx, contents); !errors.Is(err, errChanged) {
			return err
		}
	}
	return err
}

func (k *Keeper) take(ctx context.Context, contents Contents) error {
	if err := k.settle(ctx); err != nil {
		return err
	}
	found, err := collect(ctx, k.source)
	if err != nil {
		return err
	}
	defer found.close()
	fingerprint, err := found.fingerprint()
	if err != nil {
		return err
	}
	next := saved{Snapshot: k.Last.Snapshot, Fingerprint: fingerprint, Contents: contents}
	switch {
	case k.tooLarge == fingerprint:
		return ErrTooLarge
	case k.Last.Fingerprint != fingerprint:
		next.Snapshot, err = k.upload(ctx, found)
		if errors.Is(err, ErrTooLarge) {
			k.tooLarge = fingerprint
		}
		if err != nil {
			return err
		}
	case k.Last.Contents == contents:
		return nil
	}
	if next.Snapshot.Seal, err = k.key.seal(next.Snapshot.ID, next.Snapshot.Chunks, contents); err != nil {
		return err
	}
	k.Next = &next
	if err := k.store(k.file); err != nil {
		return err
	}
	if err := k.archive.CommitSnapshot(ctx, next.Snapshot, k.Last.Snapshot.ID); err != nil {
		return err
	}
	k.progress = progress{Last: next}
	return k.store(k.file)
}

// settle asks the archive whether it has the unacknowledged snapshot k.Next.
func (k *Keeper) settle(ctx context.Context) error {
	if k.Next == nil {
		return nil
	}
	found, err := k.archive.Snapshot(ctx)
	if err != nil && !errors.Is(err, handover.ErrNoSnapshot) {
		return err
	}
	if found.ID == k.Next.Snapshot.ID {
		k.Last = *k.Next
		// The ID proves only that the archive has the files of k.Next. If only the Contents changed, the
		// previous snapshot has the same ID, and the archive may still have the previous Contents. No
		// event has the ID -2, so these Contents differ from all others. take() therefore
		// commits the snapshot again.
		k.Last.Contents = Contents{Event: -2}
	}
	k.Next = nil
	return nil
}

func (p progress) store(file string) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return record.Write(file, bytes.NewReader(text), 0o600)
}

func (k *Keeper) upload(ctx context.Context, found *content) (uploaded session.Snapshot, err error) {
	if k.Last.Snapshot.ID == "" {
		switch _, err := k.archive.Snapshot(ctx); {
		case err == nil:
			return uploaded, handover.ErrOtherSnapshot
		case !errors.Is(err, handover.ErrNoSnapshot):
			return uploaded, err
		}
	}
	id := strconv.Itoa(k.archive.Attempt()) + "-" + rand.Text()
	// If the compressed size may exceed the limit, measure it before the upload: the chunks of a
	// failed upload would use up the user's storage.
	if found.size > k.maxBytes {
		_, err := k.writeChunks(ctx, found, id, func(int, []byte) error { return nil })
		if err != nil {
			return uploaded, err
		}
	}
	return k.writeChunks(ctx, found, id, func(index int, chunk []byte) error {
		return k.archive.PutChunk(ctx, id, index, chunk)
	})
}

func (k *Keeper) writeChunks(ctx context.Context, found *content, id string,
	put func(index int, chunk []byte) error) (session.Snapshot, error) {
	chunks := &chunkWriter{key: k.key, id: id, maxBytes: k.maxBytes, put: put}
	err := found.write(ctx, chunks)
	if err == nil {
		err = chunks.Close()
	}
	return session.Snapshot{ID: id, Chunks: chunks.chunks, Size: chunks.size}, err
}

// Archived is a downloaded and verified snapshot.
type Archived struct {
	Contents
	snapshot session.Snapshot
	file     string
}

// Download downloads the archived snapshot into a file and verifies it.
func Download(ctx context.Context, archive *handover.Archive, key *Key, of session.Snapshot,
	file string) (found *Archived, err error) {
	found = &Archived{snapshot: of, file: file}
	if found.Contents, err = key.unseal(of); err != nil {
		return nil, err
	}
	_ = os.RemoveAll(file)
	opened, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	err = copyChunks(opened, key, of, func(index int) ([]byte, error) {
		chunk, err := archive.Chunk(ctx, of.ID, index)
		if errors.Is(err, handover.ErrNoSnapshot) {
			return nil, errIncomplete
		}
		return chunk, err
	})
	if err = errors.Join(err, opened.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(file))
	}
	return found, nil
}

// Apply applies the snapshot to a fresh workspace. After an error, a part of the snapshot remains
// in the workspace.
func (a *Archived) Apply(ctx context.Context, to Target) (*Applied, error) {
	file, err := os.Open(a.file)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return apply(ctx, file, to)
}

// Record records the snapshot in progressFile. A Keeper that reads this file may replace the
// snapshot in the archive with a newer one. If Apply fails, the file must be removed.
func (a *Archived) Record(progressFile string) error {
	return progress{Last: saved{Snapshot: a.snapshot, Contents: a.Contents}}.store(progressFile)
}

var errIncomplete = errors.New("a part of the snapshot is missing")

// Discard removes the downloaded file.
func (a *Archived) Discard() { _ = os.Remove(a.file) }
