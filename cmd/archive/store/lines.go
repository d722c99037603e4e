package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/parley-dev/parley/api/session"
)

// bufferSize is the size of the buffer for a line, in bytes. Longer lines are read in parts. This
// limits the memory if many slow clients read at the same time.
const bufferSize = 64 << 10

var newline = []byte("\n")

// lines() calls sink() for each event of a segment, and writes the event and its newline
// to the writer that sink() returns. It ends when sink() returns nil. A last line without a newline
// is not an event: an older version of the archive was interrupted while it wrote this line.
func (s *Store) lines(ctx context.Context, of segment, sink func(id int) io.Writer) (err error) {
	object, err := s.bucket.open(ctx, of.key, 0)
	if err != nil {
		return fmt.Errorf("read a segment: %w", err)
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	reader, offset, sound := bufio.NewReaderSize(object, bufferSize), int64(0), false
	for id := of.from; ctx.Err() == nil; id++ {
		part, err := reader.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if long && !sound { // only the last line may lack its newline
			ends := false
			if sound, err = s.hasNewline(ctx, of.key, object.size-1); err == nil && !sound {
				ends, err = s.hasNewline(ctx, of.key, offset)
			}
			if err == nil && !sound && !ends {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("read a segment: %w", err)
		}
		to := sink(id)
		if to == nil {
			return nil
		}
		written, err := writeLine(to, part, long, reader)
		if err != nil {
			return err
		}
		offset += written
	}
	return ctx.Err()
}

// writeLine writes a line to the writer. If long is set, part contains only the first bytes of the
// line, and writeLine reads the other bytes from the reader rest.
func writeLine(to io.Writer, part []byte, long bool, rest *bufio.Reader) (written int64, err error) {
	for {
		n, err := to.Write(part)
		written += int64(n)
		if err != nil || !long {
			return written, err
		}
		part, err = rest.ReadSlice('\n')
		long = errors.Is(err, bufio.ErrBufferFull)
		switch {
		case errors.Is(err, io.EOF):
			return written, io.ErrUnexpectedEOF
		case err != nil && !long:
			return written, fmt.Errorf("read a segment: %w", err)
		}
	}
}

// hasNewline reports whether an object has a newline at or after an offset.
func (s *Store) hasNewline(ctx context.Context, key string, offset int64) (bool, error) {
	object, err := s.bucket.open(ctx, key, offset)
	if err != nil {
		return false, err
	}
	defer object.Close()
	reader := bufio.NewReaderSize(object, bufferSize)
	for {
		_, err := reader.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return err == nil, err
		}
	}
}

// namer computes session.JournalName of the line that is written to it.
type namer struct {
	hash.Hash
	ended bool
}

func newNamer() *namer { return &namer{Hash: sha256.New()} }

func (n *namer) Write(part []byte) (int, error) {
	text, ended := bytes.CutSuffix(part, newline)
	n.ended = ended
	_, err := n.Hash.Write(text)
	return len(part), err
}

// name returns the name of the line, or "" if the line is incomplete.
func (n *namer) name() string {
	if !n.ended {
		return ""
	}
	return hex.EncodeToString(n.Sum(nil)[:12])
}

// checkLines checks that lines are events with consecutive IDs. It returns their number, and
// session.JournalName of the last event.
func checkLines(from int, lines []byte) (count int, last string, err error) {
	var final []byte
	for line := range bytes.Lines(lines) {
		var head struct {
			ID *int `json:"id"`
		}
		if !bytes.HasSuffix(line, newline) || json.Unmarshal(line, &head) != nil || head.ID == nil ||
			*head.ID != from+count {
			return 0, "", ErrMalformed
		}
		final = line
		count++
	}
	return count, session.JournalName(bytes.TrimSuffix(final, newline)), nil
}

// wholeLines removes a last line without a newline. It also returns the name of the last complete
// line.
func wholeLines(text []byte) (whole []byte, last string) {
	whole = text[:bytes.LastIndexByte(text, '\n')+1]
	final := bytes.TrimSuffix(whole, newline)
	return whole, session.JournalName(final[bytes.LastIndexByte(final, '\n')+1:])
}
