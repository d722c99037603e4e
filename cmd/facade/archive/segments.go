package archive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/parley-dev/parley/api/session"
)

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
	const tries = 3
	for try := 1; ; try++ {
		fresh, err := s.lookOnce(ctx, uid)
		if errors.Is(err, errMoved) && try < tries {
			continue // another facade compacted them meanwhile
		}
		if err != nil {
			return err
		}
		st.known, st.reached = true, fresh
		return nil
	}
}

func (s *Store) lookOnce(ctx context.Context, uid string) (fresh reached, err error) {
	all, err := s.segments(ctx, uid)
	if err != nil {
		return fresh, err
	}
	for _, segment := range all {
		fresh.size += segment.size
	}
	aside, err := s.earlier(ctx, uid)
	if err != nil {
		return fresh, err
	}
	for _, journal := range aside {
		fresh.size += journal.size
	}
	if len(all) == 0 {
		return fresh, nil
	}
	if err := s.lines(ctx, all[0], 0, func(_ int, line []byte) bool { fresh.journal = session.JournalName(line); return false }); err != nil {
		return fresh, err
	}
	var last []byte
	visit := func(id int, line []byte) bool {
		if id >= fresh.next {
			fresh.next, last = id+1, line
		}
		return true
	}
	// One that was compacted may reach further than those that it took the place of.
	if err := s.lines(ctx, all[0], math.MaxInt, visit); err != nil {
		return fresh, err
	}
	// The last may have been cut off before it had an event.
	for i := len(all) - 1; i > 0 && fresh.next <= all[i].from; i-- {
		if err := s.lines(ctx, all[i], math.MaxInt, visit); err != nil {
			return fresh, err
		}
	}
	if last != nil {
		fresh.last = session.JournalName(last)
	}
	return fresh, nil
}

// errMoved says that a segment was compacted or deleted since it was listed.
var errMoved = errors.New("the segment is no longer there")

// lines visits those of a segment from an id on, and perhaps some before, until visit returns false.
func (s *Store) lines(ctx context.Context, at segment, from int, visit func(id int, line []byte) bool) error {
	skip, offset := s.marks.before(at.key, from-at.from)
	err := s.linesAt(ctx, at, skip, offset, visit)
	if offset > 0 && errors.Is(err, errReplaced) {
		s.marks.forget(at.key)
		err = s.linesAt(ctx, at, 0, 0, visit)
	}
	return err
}

// errReplaced says that a segment is not the one that its marks are of.
var errReplaced = errors.New("the segment is another")

func (s *Store) linesAt(ctx context.Context, at segment, skip int, offset int64, visit func(id int, line []byte) bool) (err error) {
	object, err := s.bucket.NewRangeReader(ctx, at.key, offset, -1, nil)
	switch {
	case gcerrors.Code(err) == gcerrors.NotFound:
		return errMoved
	case err != nil && offset > 0:
		return fmt.Errorf("%w: %w", errReplaced, err) // it may be shorter
	case err != nil:
		return fmt.Errorf("read a segment: %w", err)
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	reader := bufio.NewReaderSize(object, 64<<10)
	for first, id := true, at.from+skip; ; first, id = false, id+1 {
		line, err := reader.ReadBytes('\n')
		switch {
		case first && offset > 0 && (err != nil || idOf(line) != id):
			return errReplaced
		case errors.Is(err, io.EOF):
			return nil // what is left was cut off, and is no line
		case err != nil:
			return fmt.Errorf("read a segment: %w", err)
		}
		s.marks.note(at.key, id-at.from, offset)
		offset += int64(len(line))
		if !visit(id, bytes.TrimSuffix(line, newline)) {
			return nil
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
		err := s.lines(ctx, segment, next, func(id int, line []byte) bool {
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
