// Package archive keeps what sessions leave: their events, what they changed and what it cost. It outlives their pods and
// workspaces, and is kept by the UID of the Conversation.
package archive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // file:///
	_ "gocloud.dev/blob/s3blob"   // s3://
	"gocloud.dev/gcerrors"

	"github.com/parley-dev/parley/api/session"
)

const (
	// maxConversation bounds what is kept of one conversation, so that no session fills the archive.
	maxConversation = 256 << 20
	// maxStates is how many conversations are remembered: where their events end is looked up else.
	maxStates = 10000
	// eventsDir holds segments, each named after the id of its first event.
	eventsDir  = "/events/"
	endingName = "/ending.json"
)

// Why something is not taken.
var (
	ErrOtherJournal = errors.New("the archive has events of another journal under these ids")
	ErrFull         = errors.New("the archive keeps no more of this conversation")
	ErrMalformed    = errors.New("the segment is not a list of events in their order")
	// ErrNothing says that nothing is kept of a conversation.
	ErrNothing = errors.New("nothing is kept")
)

// Store of what sessions leave, in a bucket. Several facades may use one.
type Store struct {
	bucket *blob.Bucket
	// dir of a bucket that is one.
	dir string

	mu     sync.Mutex
	states map[string]*state
}

// state of a conversation's events.
type state struct {
	mu      sync.Mutex
	known   bool
	next    int
	size    int64
	journal string
}

// Open the bucket that a URL names: file:///dir, s3://bucket?region=….
func Open(ctx context.Context, address string) (*Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the archive's address is no URL")
	}
	dir := ""
	if u.Scheme == "file" {
		dir = filepath.FromSlash(u.Path)
		query := u.Query()
		// Beside the others, so that one that is complete takes its place at once.
		query.Set("no_tmp_dir", "true")
		query.Set("create_dir", "true")
		query.Set("metadata", "skip")
		u.RawQuery = query.Encode()
	}
	bucket, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return nil, fmt.Errorf("open the archive: %w", err)
	}
	return &Store{bucket: bucket, dir: dir, states: map[string]*state{}}, nil
}

// Close the bucket.
func (s *Store) Close() error { return s.bucket.Close() }

// Ready says why nothing can be kept now.
func (s *Store) Ready(ctx context.Context) error {
	_, err := s.bucket.IsAccessible(ctx)
	return err
}

func (s *Store) state(uid string) *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.states[uid]
	if found == nil {
		if len(s.states) >= maxStates {
			for other := range s.states { // any will do: it is looked up again
				delete(s.states, other)
				break
			}
		}
		found = &state{}
		s.states[uid] = found
	}
	return found
}

// Position is where the events of a conversation end.
func (s *Store) Position(ctx context.Context, uid string) (session.ArchivePosition, error) {
	st := s.state(uid)
	st.mu.Lock()
	defer st.mu.Unlock()
	// Another facade may have taken more since.
	if err := s.look(ctx, uid, st); err != nil {
		return session.ArchivePosition{}, err
	}
	return session.ArchivePosition{Next: st.next, Journal: st.journal}, nil
}

// Append events from an id on. It returns the id of the one that is wanted next: what is there already is not taken again, and a
// gap is not taken at all.
func (s *Store) Append(ctx context.Context, uid, journal string, from int, lines []byte) (next int, err error) {
	count, err := check(from, lines)
	if err != nil {
		return 0, err
	}
	st := s.state(uid)
	st.mu.Lock()
	defer st.mu.Unlock()
	for try := 0; ; try++ {
		if !st.known || st.next != from {
			if err := s.look(ctx, uid, st); err != nil {
				return 0, err
			}
		}
		switch {
		case st.journal != "" && st.journal != journal:
			return st.next, ErrOtherJournal
		case st.next != from:
			return st.next, nil
		case st.size+int64(len(lines)) > maxConversation:
			return st.next, ErrFull
		case count == 0:
			return st.next, nil
		}
		err := s.bucket.WriteAll(ctx, segmentName(uid, from), lines, &blob.WriterOptions{IfNotExist: true, ContentType: "application/jsonl"})
		if exists(err) && try == 0 {
			st.known = false // another facade was here
			continue
		}
		if err != nil {
			st.known = false
			return st.next, fmt.Errorf("write a segment: %w", err)
		}
		if st.journal == "" {
			st.journal = journal
		}
		st.next, st.size = from+count, st.size+int64(len(lines))
		return st.next, nil
	}
}

func exists(err error) bool {
	code := gcerrors.Code(err)
	return err != nil && (code == gcerrors.FailedPrecondition || code == gcerrors.AlreadyExists)
}

func segmentName(uid string, from int) string { return fmt.Sprintf("%s%s%012d", uid, eventsDir, from) }

// check that lines are events with consecutive ids.
func check(from int, lines []byte) (count int, err error) {
	if len(lines) > 0 && !bytes.HasSuffix(lines, []byte("\n")) {
		return 0, ErrMalformed
	}
	for line := range bytes.Lines(lines) {
		if idOf(line) != from+count {
			return 0, ErrMalformed
		}
		count++
	}
	return count, nil
}

func idOf(line []byte) int {
	var head struct {
		ID *int `json:"id"`
	}
	if json.Unmarshal(line, &head) != nil || head.ID == nil {
		return -1
	}
	return *head.ID
}

// segment of a conversation's events.
type segment struct {
	key  string
	from int
	size int64
}

// segments in their order. A directory whose files change while it is listed is listed again.
func (s *Store) segments(ctx context.Context, uid string) ([]segment, error) {
	const tries = 20
	for try := 1; ; try++ {
		all, err := s.list(ctx, uid)
		if err == nil {
			return all, nil
		}
		if gcerrors.Code(err) != gcerrors.NotFound || try == tries {
			return nil, fmt.Errorf("list segments: %w", err)
		}
	}
}

func (s *Store) list(ctx context.Context, uid string) (all []segment, err error) {
	list := s.bucket.List(&blob.ListOptions{Prefix: uid + eventsDir})
	for {
		object, err := list.Next(ctx)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if from, err := strconv.Atoi(strings.TrimPrefix(object.Key, uid+eventsDir)); err == nil {
			all = append(all, segment{object.Key, from, object.Size})
		}
	}
}

// look where the events end, and which journal they are of.
func (s *Store) look(ctx context.Context, uid string, st *state) error {
	all, err := s.segments(ctx, uid)
	if err != nil {
		return err
	}
	fresh := state{known: true}
	for _, segment := range all {
		fresh.size += segment.size
	}
	if len(all) > 0 {
		first, err := s.lines(ctx, all[0], func(int, []byte) bool { return false })
		if err != nil {
			return err
		}
		fresh.journal = session.JournalName(bytes.TrimSuffix(first, []byte("\n")))
		// One that was compacted may reach further than those that it took the place of.
		for _, at := range []segment{all[0], all[len(all)-1]} {
			if _, err := s.lines(ctx, at, func(id int, _ []byte) bool { fresh.next = max(fresh.next, id+1); return true }); err != nil {
				return err
			}
		}
	}
	st.known, st.next, st.size, st.journal = fresh.known, fresh.next, fresh.size, fresh.journal
	return nil
}

// errMoved says that a segment was compacted or deleted since it was listed.
var errMoved = errors.New("the segment is no longer there")

// lines visits those of a segment until visit returns false, and returns the first.
func (s *Store) lines(ctx context.Context, at segment, visit func(id int, line []byte) bool) (first []byte, err error) {
	object, err := s.bucket.NewReader(ctx, at.key, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, errMoved
	}
	if err != nil {
		return nil, fmt.Errorf("read a segment: %w", err)
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	reader := bufio.NewReaderSize(object, 64<<10)
	for id := at.from; ; id++ {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return first, nil
		}
		if err != nil {
			return first, fmt.Errorf("read a segment: %w", err)
		}
		if first == nil {
			first = line
		}
		if !visit(id, bytes.TrimSuffix(line, []byte("\n"))) {
			return first, nil
		}
	}
}

// Events visits those from an id on, each once and in order, until visit returns false.
func (s *Store) Events(ctx context.Context, uid string, from int, visit func(id int, event json.RawMessage) bool) error {
	const tries = 3
	for try := 1; ; try++ {
		next, err := s.events(ctx, uid, from, visit)
		if !errors.Is(err, errMoved) || try == tries {
			return err
		}
		from = next // those that are left are in another segment by now
	}
}

func (s *Store) events(ctx context.Context, uid string, next int, visit func(id int, event json.RawMessage) bool) (int, error) {
	all, err := s.segments(ctx, uid)
	if err != nil {
		return next, err
	}
	if len(all) == 0 {
		return next, ErrNothing
	}
	goOn := true
	for i, segment := range all {
		if i > 0 && i+1 < len(all) && all[i+1].from <= next {
			continue // all of it is before; only the first may have been compacted, and reach further
		}
		_, err := s.lines(ctx, segment, func(id int, line []byte) bool {
			if id == next {
				next++
				goOn = visit(id, line)
			}
			return goOn
		})
		if err != nil || !goOn {
			return next, err
		}
	}
	return next, nil
}

// End keeps what a session leaves at its end, and makes one segment of many.
func (s *Store) End(ctx context.Context, uid string, ending *session.Ending) error {
	text, err := json.Marshal(ending)
	if err != nil {
		return err
	}
	if err := s.bucket.WriteAll(ctx, uid+endingName, text, &blob.WriterOptions{ContentType: "application/json"}); err != nil {
		return fmt.Errorf("write the ending: %w", err)
	}
	return s.compact(ctx, uid)
}

// compact writes all events into the first segment and removes the others. Whenever it is killed, readers find each event once.
func (s *Store) compact(ctx context.Context, uid string) error {
	all, err := s.segments(ctx, uid)
	if err != nil || len(all) < 2 {
		return err
	}
	writing, cancel := context.WithCancel(ctx)
	defer cancel() // what was not closed is not written
	whole, err := s.bucket.NewWriter(writing, segmentName(uid, 0), &blob.WriterOptions{ContentType: "application/jsonl"})
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	var failed error
	err = s.Events(ctx, uid, 0, func(_ int, event json.RawMessage) bool {
		_, failed = whole.Write(append(event, '\n'))
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		cancel()
		_ = whole.Close()
		return fmt.Errorf("compact: %w", err)
	}
	if err := whole.Close(); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	for _, segment := range all[1:] {
		if err := s.remove(ctx, segment.key); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) remove(ctx context.Context, key string) error {
	if err := s.bucket.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// Ending of a session; ErrNothing where it has not ended.
func (s *Store) Ending(ctx context.Context, uid string) (*session.Ending, error) {
	text, err := s.bucket.ReadAll(ctx, uid+endingName)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, ErrNothing
	}
	if err != nil {
		return nil, fmt.Errorf("read the ending: %w", err)
	}
	ending := &session.Ending{}
	return ending, json.Unmarshal(text, ending)
}
