// Package store keeps what sessions leave: their events, what they changed and what it cost. It
// outlives their pods and workspaces, and is kept by the UID of the Conversation. Several processes
// may share a bucket: whatever they write at once, each event is kept once and in order.
package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/parley-dev/parley/api/session"
)

const (
	// maxConversation bounds the events of one Conversation, so that no session fills the store.
	maxConversation = 256 << 20
	// minSegment is the size up to which the last segment of a journal is extended. A larger one would
	// be written anew too often, a smaller one would leave many objects to list and read.
	minSegment = 64 << 10
	// attemptName is the object with the latest attempt of a session that wrote something.
	attemptName = "/attempt"
	linesType   = "application/jsonl"
)

// Reasons why something is refused.
var (
	ErrOtherJournal = errors.New("the archive has other events under these ids")
	ErrFull         = errors.New("the archive keeps no more of this conversation")
	ErrOwnerFull    = errors.New("the archive keeps no more of this user until some of the user's conversations are " +
		"deleted")
	ErrSuperseded = errors.New("a later attempt of the session has taken over")
	ErrNoEnding   = errors.New("the body is no ending of a session")
	ErrMalformed  = errors.New("the segment is not a list of events in their order")
	// ErrNothing means that nothing is kept of a Conversation.
	ErrNothing = errors.New("nothing is kept")
)

// Store keeps what sessions leave in a bucket. It remembers nothing: each write is conditional on what
// was read before, so that of two writers one is told to read again.
type Store struct {
	bucket bucket
	// maxConversation bounds the events of one Conversation.
	maxConversation int64
	quota           quota
}

// Open the store at a URL: file:///dir or s3://bucket?region=…. Users' Conversations may take perUser
// bytes each; zero is no limit.
func Open(ctx context.Context, address string, perUser int64) (*Store, error) {
	bucket, err := openBucket(ctx, address)
	if err != nil {
		return nil, err
	}
	return &Store{bucket: bucket, maxConversation: maxConversation, quota: quota{limit: perUser}}, nil
}

// Ready returns an error while the store cannot be used.
func (s *Store) Ready(ctx context.Context) error { return s.bucket.ready(ctx) }

// unlessChanged repeats what another writer came before.
func unlessChanged(do func() error) (err error) {
	const tries = 5
	for range tries {
		if err = do(); !errors.Is(err, errChanged) && !errors.Is(err, errNotFound) {
			return err
		}
	}
	return err
}

// claim the Conversation for an attempt of its session. From then on no earlier one may write,
// whichever process it asks.
func (s *Store) claim(ctx context.Context, uid string, attempt int) error {
	text, version, err := readAll(ctx, s.bucket, uid+attemptName)
	if err != nil && !errors.Is(err, errNotFound) {
		return fmt.Errorf("read the attempt: %w", err)
	}
	latest, _ := strconv.Atoi(string(text))
	switch {
	case attempt < latest:
		return ErrSuperseded
	case attempt == latest:
		return nil
	}
	err = s.bucket.put(ctx, uid+attemptName, "text/plain", []byte(strconv.Itoa(attempt)),
		condition{absent: version == "", version: version})
	if err != nil {
		return fmt.Errorf("write the attempt: %w", err)
	}
	return nil
}

// Position is where the events of a Conversation end.
func (s *Store) Position(ctx context.Context, uid string) (position session.ArchivePosition, err error) {
	err = unlessChanged(func() error {
		now, err := s.look(ctx, uid)
		if err != nil {
			return err
		}
		position = session.ArchivePosition{Next: now.next, Last: now.last}
		position.Journal, err = s.nameJournal(ctx, now)
		return err
	})
	return position, err
}

// Batch is events of a journal, from an id on.
type Batch struct {
	// Journal and Previous are the names of the journal's first event and of the one before these.
	// They must be those of what is kept; an empty Previous is not compared.
	Journal, Previous string
	From              int
	Lines             []byte
}

// Append a batch. It returns where the events end then. Events that are kept already are not taken
// again, and events that would leave a gap are not taken at all.
func (s *Store) Append(ctx context.Context, uid string, attempt int, batch Batch) (position session.ArchivePosition,
	err error) {
	count, last, err := checkLines(batch.From, batch.Lines)
	if err != nil {
		return position, err
	}
	err = unlessChanged(func() error {
		now, err := s.look(ctx, uid)
		if err != nil {
			return err
		}
		position = session.ArchivePosition{Next: now.next, Last: now.last, Journal: batch.Journal}
		if batch.Previous == "" || batch.Previous != now.last || now.next != batch.From {
			if position.Journal, err = s.nameJournal(ctx, now); err != nil {
				return err
			}
		}
		if err := s.claim(ctx, uid, attempt); err != nil {
			return err
		}
		size := now.size + int64(len(batch.Lines))
		switch {
		case position.Journal != "" && position.Journal != batch.Journal:
			return ErrOtherJournal
		case now.next != batch.From:
			return nil
		case batch.Previous != "" && batch.Previous != now.last:
			return ErrOtherJournal
		case size > s.maxConversation:
			return ErrFull
		case count == 0:
			return nil
		case !s.quota.allows(uid, withEvents(size)):
			return ErrOwnerFull
		}
		if err := s.write(ctx, uid, now, batch); err != nil {
			return fmt.Errorf("write a segment: %w", err)
		}
		s.quota.set(uid, withEvents(size))
		position = session.ArchivePosition{Next: now.next + count, Last: last, Journal: batch.Journal}
		return nil
	})
	return position, err
}

// write a batch after the events that are kept. Those decide which object is written: of two processes
// that write at once, one finds it changed.
func (s *Store) write(ctx context.Context, uid string, now extent, batch Batch) error {
	key := segmentKey(uid, now.number, batch.From)
	lines, when := batch.Lines, condition{absent: true}
	var tail segment
	if len(now.segments) > 0 {
		tail = now.segments[len(now.segments)-1]
	}
	if empty := tail.key == key; empty || tail.key != "" && tail.size < minSegment {
		text, version, err := readAll(ctx, s.bucket, tail.key)
		if err != nil {
			return err
		}
		whole, last := wholeLines(text)
		switch {
		case empty && len(whole) > 0, !empty && last != now.last:
			return errChanged
		case empty || len(text) < minSegment: // otherwise others extended it since it was listed
			key, lines, when = tail.key, append(whole, lines...), condition{version: version}
		}
	}
	return s.bucket.put(ctx, key, linesType, lines, when)
}
