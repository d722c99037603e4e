package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/parley-dev/parley/api/session"
)

// ErrTooLarge says that the session's work does not fit into a snapshot.
var ErrTooLarge = fmt.Errorf("the files exceed the size limit of a snapshot (%d MiB compressed)",
	session.MaxSnapshot>>20)

// chunkWriter encrypts a stream in chunks. It writes a chunk only when it knows whether another
// chunk follows, because the encryption marks the last chunk.
type chunkWriter struct {
	key      *Key
	id       string
	put      func(index int, chunk []byte) error
	maxBytes int64
	buffer   bytes.Buffer
	chunks   int
	size     int64
}

func (w *chunkWriter) Write(text []byte) (written int, err error) {
	for len(text) > 0 {
		if w.buffer.Len() == session.SnapshotChunk {
			if err := w.flush(false); err != nil {
				return written, err
			}
		}
		part := text[:min(len(text), session.SnapshotChunk-w.buffer.Len())]
		w.buffer.Write(part)
		written, text = written+len(part), text[len(part):]
	}
	return written, nil
}

// Close writes the last chunk.
func (w *chunkWriter) Close() error { return w.flush(true) }

func (w *chunkWriter) flush(last bool) error {
	if w.size+int64(w.buffer.Len()) > w.maxBytes {
		return ErrTooLarge
	}
	chunk := w.key.sealChunk(w.id, w.chunks, last, w.buffer.Bytes())
	if err := w.put(w.chunks, chunk); err != nil {
		return err
	}
	w.chunks, w.size = w.chunks+1, w.size+int64(len(chunk))
	w.buffer.Reset()
	return nil
}

func copyChunks(to io.Writer, key *Key, of session.Snapshot, get func(index int) ([]byte, error)) error {
	if of.Chunks < 1 || of.Size > session.MaxSnapshot+session.SnapshotChunk {
		return ErrAltered
	}
	for index := range of.Chunks {
		chunk, err := get(index)
		if err != nil {
			return err
		}
		text, err := key.openChunk(of.ID, index, index == of.Chunks-1, chunk)
		if err != nil {
			return err
		}
		if _, err := to.Write(text); err != nil {
			return errors.Join(errWrite, err)
		}
	}
	return nil
}

var errWrite = errors.New("the snapshot cannot be written to the workspace")
