// Package store stores the events, changes and costs of sessions. The data outlives pods and
// workspaces. Several processes can share a bucket: concurrent writes still store each event
// exactly once and in order.
package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/parley-dev/parley/api/session"
)

const (
	// maxConversation limits the events of one Conversation, in bytes, so that no session fills the
	// store.
	maxConversation = 256 << 20
	// minSegment is the size, in bytes, up to which the last segment is extended. A larger limit
	// would rewrite more bytes per append; a smaller limit would create many objects.
	minSegment = 64 << 10
	// attemptName is the suffix of an object's key. The object contains the number of the latest
	// attempt that wrote data of the Conversation.
	attemptName = "/attempt"
	linesType   = "application/jsonl"
)

// Errors of refused operations.
var (
	ErrOtherJournal = errors.New("the archive already stores different events with these IDs")
	ErrFull         = errors.New("the archive's storage limit for this conversation is reached")
	ErrOwnerFull    = errors.New("the archive's storage limit for this user is reached: delete some conversations " +
		"first")
	ErrSuperseded = errors.New("a later attempt of the session is running")
	ErrNoEnding   = errors.New("the body is not the final report of a session")
	ErrMalformed  = errors.New("the body must be a list of events in ascending order of ID")
	// ErrNothing reports that the archive does not have the requested data of a Conversation.
	ErrNothing = errors.New("not in the archive")
)

// Store stores session data in a bucket. It caches no events. A write succeeds only if the data is
// unchanged since the store read it. If two writers conflict, one of them must read the data again.
type Store struct {
	bucket          bucket
	maxConversation int64
	quota           quota
	// leftovers contains the key prefixes of the snapshots that the last sweep found and that no
	// manifest names. If the next sweep finds such a snapshot again, it removes the snapshot.
	leftovers  map[string]bool
	turns      turns
	users      objects[ledger]
	namespaces objects[namespaceLedger]
	// Now returns the current time, which determines the current month of the ledgers. Tests replace
	// this function.
	Now func() time.Time
}

// Open opens the store at a URL: file:///dir or s3://bucket?region=…. perUser limits the bytes of
// each user; zero means no limit.
func Open(ctx context.Context, address string, perUser int64) (*Store, error) {
	bucket, err := openBucket(ctx, address)
	if err != nil {
		return nil, err
	}
	return &Store{bucket: bucket, maxConversation: maxConversation, quota: quota{limit: perUser},
		turns: turns{limit: session.MaxTurns}, Now: time.Now}, nil
}

// Ready returns an error while the store cannot be used.
func (s *Store) Ready(ctx context.Context) error { return s.bucket.ready(ctx) }

// retryChanged calls a function. If the function fails because a concurrent write changed or removed
// an object, retryChanged calls the function again.
func retryChanged(do func() error) (err error) {
	const tries = 5
	for range tries {
		if err = do(); !errors.Is(err, errChanged) && !errors.Is(err, errNotFound) {
			return err
		}
	}
	return err
}

// claim records the attempt as the latest attempt that writes data. From then on, every process
// refuses the writes of earlier attempts.
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

// Position returns the end of a Conversation's events.
func (s *Store) Position(ctx context.Context, uid string) (position session.ArchivePosition, err error) {
	err = retryChanged(func() error {
		now, err := s.extentOf(ctx, uid)
		if err != nil {
			return err
		}
		position = session.ArchivePosition{Next: now.next, Last: now.last}
		position.Journal, err = s.nameJournal(ctx, now)
		return err
	})
	return position, err
}

// Batch is a batch of a journal's events.
type Batch struct {
	// Journal is the name of the journal, which is the name of its first event. Previous is the
	// name of the event before the batch. Append compares both with the stored events, and refuses
	// the batch if a name differs. It does not compare an empty Previous.
	Journal, Previous string
	From              int
	Lines             []byte
}

// Append stores a batch and returns the new end of the events. It ignores a batch that does not
// start directly after the stored events.
func (s *Store) Append(ctx context.Context, uid string, attempt int, batch Batch) (position session.ArchivePosition,
	err error) {
	count, last, err := checkLines(batch.From, batch.Lines)
	if err != nil {
		return position, err
	}
	err = retryChanged(func() error {
		now, err := s.extentOf(ctx, uid)
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

// write writes a batch after the stored events. If two writers append at the same time, both write
// the same object, and one of them gets errChanged.
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
		case empty || len(text) < minSegment: // otherwise, the segment is full by now: write a new segment
			key, lines, when = tail.key, append(whole, lines...), condition{version: version}
		}
	}
	return s.bucket.put(ctx, key, linesType, lines, when)
}
