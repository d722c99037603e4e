package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/session"
)

// End keeps what a session leaves at its end, and makes one segment of many.
func (s *Store) End(ctx context.Context, uid string, ending *session.Ending) error {
	text, err := json.Marshal(ending)
	if err != nil {
		return err
	}
	err = s.write(ctx, uid+endingName, false, "application/json", func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the ending: %w", err)
	}
	// What is not compacted is read all the same; the session is not to wait for that, nor to try again.
	if err := s.compact(ctx, uid); err != nil {
		logf.FromContext(ctx).Info("What a session left could not be compacted", "uid", uid, "reason", err.Error())
	}
	return nil
}

// compact writes all events into the first segment and removes the others. Whenever it is killed, readers find each event once.
func (s *Store) compact(ctx context.Context, uid string) error {
	all, err := s.segments(ctx, uid)
	if err != nil || len(all) < 2 {
		return err
	}
	if err := s.copyEvents(ctx, uid, segmentName(uid, 0)); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	for _, segment := range all[1:] {
		if err := s.remove(ctx, segment.key); err != nil {
			return err
		}
	}
	return nil
}

// copyEvents writes all events into one object.
func (s *Store) copyEvents(ctx context.Context, uid, key string) error {
	return s.write(ctx, key, false, linesType, func(w io.Writer) error {
		var failed error
		err := s.Events(ctx, uid, 0, func(_ int, event json.RawMessage) bool {
			_, failed = w.Write(append(event, '\n'))
			return failed == nil
		})
		return errors.Join(err, failed)
	})
}

// Aside puts the events that are kept aside, for those of a journal that has others under the same ids: one that began anew, as
// the workspace was lost while the archive was away. Both are kept, and neither is mixed with the other.
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

// aside is a journal that was put aside.
type aside struct {
	key  string
	size int64
	at   time.Time
}

// earlier journals, the latest first.
func (s *Store) earlier(ctx context.Context, uid string) (all []aside, err error) {
	list := s.bucket.List(&blob.ListOptions{Prefix: uid + earlierDir})
	for {
		object, err := list.Next(ctx)
		if errors.Is(err, io.EOF) {
			slices.SortStableFunc(all, func(a, b aside) int { return b.at.Compare(a.at) })
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list earlier journals: %w", err)
		}
		if !strings.HasSuffix(object.Key, temporary) {
			all = append(all, aside{object.Key, object.Size, object.ModTime})
		}
	}
}

// Earlier visits the events of a journal that was put aside: 1 is the last of them. ErrNothing says that there is none.
func (s *Store) Earlier(ctx context.Context, uid string, number int, visit func(id int, event json.RawMessage) bool) error {
	all, err := s.earlier(ctx, uid)
	if err != nil {
		return err
	}
	if number < 1 || number > len(all) {
		return ErrNothing
	}
	return s.lines(ctx, segment{key: all[number-1].key}, 0, func(id int, line []byte) bool { return visit(id, line) })
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
