package archive

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"gocloud.dev/blob"

	"github.com/parley-dev/parley/api/session"
)

// End keeps what an attempt of a session leaves at its end, a session.Ending as JSON, and begins to
// make one segment of many. A later attempt may have claimed the conversation since this one asked.
func (s *Store) End(ctx context.Context, uid string, attempt int, ending []byte) error {
	if json.Unmarshal(ending, &session.Ending{}) != nil {
		return ErrNoEnding
	}
	st := s.state(uid)
	st.mu.Lock()
	defer st.mu.Unlock()
	switch latest, err := s.latest(ctx, uid); {
	case err != nil:
		return err
	case attempt < latest:
		return ErrSuperseded
	case len(ending) > smallEnding && !s.shares.room(uid, hasEnding(len(ending))):
		return ErrOwnerFull
	}
	err := s.write(ctx, uid+endingName, false, "application/json", func(w io.Writer) error {
		_, err := w.Write(ending)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the ending: %w", err)
	}
	s.shares.set(uid, hasEnding(len(ending)))
	s.tidier.start(uid, func(ctx context.Context) error { return s.compact(ctx, uid, attempt) })
	return nil
}

// copyEvents writes all events into one object.
func (s *Store) copyEvents(ctx context.Context, uid, key string) error {
	return s.write(ctx, key, false, linesType, func(w io.Writer) error { return s.Copy(ctx, uid, 0, w) })
}

// Aside puts the events that are kept aside, for those of a journal that has others under the same
// ids: one that began anew, as the workspace was lost while the archive was away. Both are kept,
// and neither is mixed with the other.
func (s *Store) Aside(ctx context.Context, uid string) error {
	st := s.state(uid)
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := s.look(ctx, uid, st); err != nil || st.next == 0 {
		return err
	}
	all, err := s.segments(ctx, uid)
	if err != nil {
		return err
	}
	st.known = false
	st.replaced++
	// Named after what it is, so that doing it again after a failure does no more.
	if err := s.copyEvents(ctx, uid, fmt.Sprintf("%s%s%s-%012d", uid, earlierDir, st.journal, st.next)); err != nil {
		return fmt.Errorf("put a journal aside: %w", err)
	}
	for i := len(all) - 1; i >= 0; i-- { // what is left, if it is cut off, is still the beginning of a journal
		if err := s.remove(ctx, all[i].key); err != nil {
			return err
		}
	}
	return nil
}

// earlier journals, the latest first.
func (s *Store) earlier(ctx context.Context, uid string) ([]object, error) {
	all, err := s.list(ctx, uid+earlierDir)
	if err != nil {
		return nil, fmt.Errorf("list earlier journals: %w", err)
	}
	slices.SortStableFunc(all, func(a, b object) int { return b.at.Compare(a.at) })
	return all, nil
}

// Earlier visits the events from an id on of a journal that was put aside: 1 is the last of them.
// ErrNothing says that there is none.
func (s *Store) Earlier(ctx context.Context, uid string, number, from int, visit func(id int,
	event json.RawMessage) bool) error {
	return s.eachEarlier(ctx, uid, number, from, whole(visit))
}

// CopyEarlier copies them as Copy does.
func (s *Store) CopyEarlier(ctx context.Context, uid string, number int, to io.Writer) error {
	return s.eachEarlier(ctx, uid, number, 0, copied(to))
}

func (s *Store) eachEarlier(ctx context.Context, uid string, number, from int, visit visitor) error {
	all, err := s.earlier(ctx, uid)
	if err != nil {
		return err
	}
	if number < 1 || number > len(all) {
		return ErrNothing
	}
	return s.lines(ctx, segment{key: all[number-1].key}, from, func(id int, l *line) (bool, error) {
		if id < from {
			return true, nil
		}
		return visit(id, l)
	})
}

func (s *Store) remove(ctx context.Context, key string) error {
	if err := s.failed(ctx, "remove", key); err != nil {
		return err
	}
	if err := s.bucket.Delete(ctx, key); err != nil && !absent(err) {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// Ending of a session; ErrNothing where it has not ended.
func (s *Store) Ending(ctx context.Context, uid string) (*session.Ending, error) {
	text, err := s.openEnding(ctx, uid)
	if err != nil {
		return nil, err
	}
	defer text.Close()
	ending := &session.Ending{}
	if err := json.NewDecoder(text).Decode(ending); err != nil {
		return nil, fmt.Errorf("read the ending: %w", err)
	}
	return ending, nil
}

func (s *Store) openEnding(ctx context.Context, uid string) (*blob.Reader, error) {
	text, err := s.bucket.NewReader(ctx, uid+endingName, nil)
	switch {
	case absent(err):
		return nil, ErrNothing
	case err != nil:
		return nil, fmt.Errorf("read the ending: %w", err)
	}
	return text, nil
}
