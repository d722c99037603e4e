// Package archive keeps what sessions leave: their events, what they changed and what it cost. It
// outlives their pods and workspaces, and is kept by the UID of the Conversation.
package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // file:///
	_ "gocloud.dev/blob/s3blob"   // s3://
	"gocloud.dev/gcerrors"

	"github.com/parley-dev/parley/api/session"
)

const (
	// maxConversation bounds what is kept of one conversation, so that no session fills the
	// archive.
	maxConversation = 256 << 20
	// maxStates is how many conversations are remembered: where their events end is looked up else.
	maxStates = 10000
	// eventsDir holds segments, each named after the id of its first event.
	eventsDir  = "/events/"
	endingName = "/ending.json"
	// attemptName holds the latest attempt that handed something over.
	attemptName = "/attempt"
	// earlierDir holds journals that were put aside, each in one piece.
	earlierDir = "/earlier/"
)

// Why something is not taken.
var (
	ErrOtherJournal = errors.New("the archive has other events under these ids")
	ErrFull         = errors.New("the archive keeps no more of this conversation")
	ErrOwnerFull    = errors.New("the archive keeps no more of this user until some of the user's conversations are " +
		"deleted")
	ErrSuperseded = errors.New("a later attempt of the session has taken over")
	ErrNoEnding   = errors.New("the body is no ending of a session")
	ErrMalformed  = errors.New("the segment is not a list of events in their order")
	// ErrNothing says that nothing is kept of a conversation.
	ErrNothing = errors.New("nothing is kept")
)

// Store of what sessions leave, in a bucket. Several facades may use one.
type Store struct {
	bucket *blob.Bucket
	// dir of a bucket that is one.
	dir string

	// most bounds what is kept of one conversation.
	most int64
	// fault of a test comes before each write, commit and removal; else it is nil.
	fault func(ctx context.Context, step, key string) error

	tidier *tidier
	marks  marks
	shares shares
	mu     sync.Mutex
	states map[string]*state
}

// state of a conversation's events.
type state struct {
	mu    sync.Mutex
	known bool
	// replaced is how often segments were put aside or written anew.
	replaced int
	// wasted is what compacting wrote in vain since it last succeeded. Only that has it, one at a time.
	wasted int64
	reached
}

// reached is how far what is kept goes.
type reached struct {
	next    int
	size    int64
	journal string
	// last is the name of the last event.
	last string
}

func (r reached) position() session.ArchivePosition {
	return session.ArchivePosition{Next: r.next, Journal: r.journal, Last: r.last}
}

// Open the bucket that a URL names: file:///dir, s3://bucket?region=….
func Open(ctx context.Context, address string) (*Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the archive's address is no URL")
	}
	dir := ""
	if u.Scheme == "file" {
		if u.Host != "" || u.Path == "" {
			return nil, fmt.Errorf("the archive's address is %s://%s: the path of a directory begins with /, as in file:///dir",
				u.Scheme, u.Host)
		}
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
	s := &Store{bucket: bucket, dir: dir, most: maxConversation, tidier: newTidier(ctx), states: map[string]*state{}}
	if dir != "" {
		s.tidier.all.Go(func() { s.removeTemporary(s.tidier.ctx) })
	}
	return s, nil
}

// Close the bucket, after ending what is done in the background. That ends with the context that it
// was opened with, too.
func (s *Store) Close() error {
	s.tidier.close()
	return s.bucket.Close()
}

func (s *Store) failed(ctx context.Context, step, key string) error {
	if s.fault == nil {
		return nil
	}
	return s.fault(ctx, step, key)
}

// Ready says why nothing can be kept now.
func (s *Store) Ready(ctx context.Context) error {
	if s.dir != "" {
		_, err := os.ReadDir(s.dir)
		return err
	}
	found, err := s.bucket.IsAccessible(ctx)
	if err == nil && !found {
		err = errors.New("there is no such bucket")
	}
	return err
}

func (s *Store) state(uid string) *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.states[uid]
	if found == nil {
		if len(s.states) >= maxStates {
			for other := range s.states { // any will do that nobody tidies: it is looked up again
				if !s.tidier.has(other) {
					delete(s.states, other)
					break
				}
			}
		}
		found = &state{}
		s.states[uid] = found
	}
	return found
}

// Claim the archive of a conversation for an attempt of its session. From then on none before may
// write, whichever process it asks.
func (s *Store) Claim(ctx context.Context, uid string, attempt int) error {
	st := s.state(uid)
	st.mu.Lock()
	defer st.mu.Unlock()
	latest, err := s.latest(ctx, uid)
	switch {
	case err != nil:
		return err
	case attempt < latest:
		return ErrSuperseded
	case attempt == latest:
		return nil
	}
	err = s.write(ctx, uid+attemptName, false, "text/plain", func(w io.Writer) error {
		_, err := io.WriteString(w, strconv.Itoa(attempt))
		return err
	})
	if err != nil {
		return fmt.Errorf("write the attempt: %w", err)
	}
	return nil
}

// latest attempt that claimed the archive of a conversation.
func (s *Store) latest(ctx context.Context, uid string) (int, error) {
	text, err := s.bucket.ReadAll(ctx, uid+attemptName)
	if err != nil && !absent(err) {
		return 0, fmt.Errorf("read the attempt: %w", err)
	}
	attempt, _ := strconv.Atoi(string(text)) // none is before the first
	return attempt, nil
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
	return st.position(), nil
}

// Segment is events of a journal, from an id on.
type Segment struct {
	// Journal and Previous are the names of the first event, and of the one before these: what is
	// kept must be the same. Who does not say which is before is believed.
	Journal, Previous string
	From              int
	Lines             []byte
}

// Append a segment. It returns where the events end then: what is there already is not taken again,
// and a gap is not taken at all.
func (s *Store) Append(ctx context.Context, uid string, segment Segment) (session.ArchivePosition, error) {
	from := segment.From
	count, last, err := check(from, segment.Lines)
	if err != nil {
		return session.ArchivePosition{}, err
	}
	st := s.state(uid)
	st.mu.Lock()
	defer st.mu.Unlock()
	for try := 0; ; try++ {
		if !st.known || st.next != from {
			if err := s.look(ctx, uid, st); err != nil {
				return session.ArchivePosition{}, err
			}
		}
		switch {
		case st.journal != "" && st.journal != segment.Journal:
			return st.position(), ErrOtherJournal
		case st.next != from:
			return st.position(), nil
		case segment.Previous != "" && segment.Previous != st.last:
			return st.position(), ErrOtherJournal
		case st.size+int64(len(segment.Lines)) > s.most:
			return st.position(), ErrFull
		case count == 0:
			return st.position(), nil
		case !s.shares.room(uid, hasEvents(st.size+int64(len(segment.Lines)))):
			return st.position(), ErrOwnerFull
		}
		if try == 2 {
			st.replaced++
		}
		err := s.write(ctx, segmentName(uid, from), try < 2, linesType, func(w io.Writer) error {
			_, err := w.Write(segment.Lines)
			return err
		})
		if exists(err) && try < 2 {
			// Another facade was here; or one was cut off and left a segment without an event,
			// which is none.
			st.known = false
			continue
		}
		if err != nil {
			st.known = false
			return st.position(), fmt.Errorf("write a segment: %w", err)
		}
		if st.journal == "" {
			st.journal = segment.Journal
		}
		st.next, st.size, st.last = from+count, st.size+int64(len(segment.Lines)), last
		s.shares.set(uid, hasEvents(st.size))
		return st.position(), nil
	}
}

func exists(err error) bool {
	if errors.Is(err, fs.ErrExist) {
		return true
	}
	code := gcerrors.Code(err)
	return err != nil && (code == gcerrors.FailedPrecondition || code == gcerrors.AlreadyExists)
}

func segmentName(uid string, from int) string { return fmt.Sprintf("%s%s%012d", uid, eventsDir, from) }

// check that lines are events with consecutive ids. It returns the name of the last.
func check(from int, lines []byte) (count int, last string, err error) {
	if len(lines) > 0 && !bytes.HasSuffix(lines, newline) {
		return 0, "", ErrMalformed
	}
	var final []byte
	for line := range bytes.Lines(lines) {
		if idOf(line) != from+count {
			return 0, "", ErrMalformed
		}
		final = line
		count++
	}
	return count, session.JournalName(bytes.TrimSuffix(final, newline)), nil
}

var newline = []byte("\n")

func idOf(line []byte) int {
	var head struct {
		ID *int `json:"id"`
	}
	if json.Unmarshal(line, &head) != nil || head.ID == nil {
		return -1
	}
	return *head.ID
}
