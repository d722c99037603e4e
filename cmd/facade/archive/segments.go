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
	"sync"
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
		objects, err := s.list(ctx, uid+eventsDir)
		switch {
		case err == nil:
			return segmentsOf(objects, uid+eventsDir), nil
		case !absent(err) || try == tries:
			return nil, fmt.Errorf("list segments: %w", err)
		}
	}
}

func segmentsOf(objects []object, prefix string) (all []segment) {
	for _, o := range objects {
		if from, err := strconv.Atoi(strings.TrimPrefix(o.key, prefix)); err == nil {
			all = append(all, segment{o.key, from, o.size})
		}
	}
	return all
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
	first := func(_ int, l *line) (_ bool, err error) {
		fresh.journal, err = l.name()
		return false, err
	}
	if err := s.lines(ctx, all[0], 0, first); err != nil {
		return fresh, err
	}
	visit := func(id int, l *line) (bool, error) {
		name, err := l.name()
		if err == nil && id >= fresh.next {
			fresh.next, fresh.last = id+1, name
		}
		return err == nil, err
	}
	// One that was compacted may reach further than those that it took the place of.
	if err := s.lines(ctx, all[0], math.MaxInt, visit); err != nil {
		return fresh, err
	}
	fresh.size += all[0].size
	for _, segment := range all[1:] {
		if segment.from >= fresh.next { // else its events are in the first one, too: compacting was cut off
			fresh.size += segment.size
		}
	}
	// The last may have been cut off before it had an event.
	for i := len(all) - 1; i > 0 && fresh.next <= all[i].from; i-- {
		if err := s.lines(ctx, all[i], math.MaxInt, visit); err != nil {
			return fresh, err
		}
	}
	return fresh, nil
}

// errMoved says that a segment was compacted or deleted since it was listed.
var errMoved = errors.New("the segment is no longer there")

// visitor of the lines of events. It returns whether to go on.
type visitor func(id int, l *line) (bool, error)

// whole visits events that are held in one piece.
func whole(visit func(id int, event json.RawMessage) bool) visitor {
	return func(id int, l *line) (bool, error) {
		text, err := l.bytes()
		return err == nil && visit(id, bytes.TrimSuffix(text, newline)), err
	}
}

// copied writes the events, a line each.
func copied(w io.Writer) visitor {
	return func(_ int, l *line) (bool, error) {
		_, err := l.WriteTo(w)
		return err == nil, err
	}
}

// lines visits those of a segment from an id on, and perhaps some before, until visit returns
// false.
func (s *Store) lines(ctx context.Context, at segment, from int, visit visitor) error {
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

func (s *Store) linesAt(ctx context.Context, at segment, skip int, offset int64, visit visitor) (err error) {
	object, err := s.bucket.NewRangeReader(ctx, at.key, offset, -1, nil)
	switch {
	case absent(err):
		return errMoved
	case err != nil && offset > 0:
		return fmt.Errorf("%w: %w", errReplaced, err) // it may be shorter
	case err != nil:
		return fmt.Errorf("read a segment: %w", err)
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	reader := bufio.NewReaderSize(object, 64<<10)
	end := sync.OnceValues(func() (int64, error) { return s.endOfLines(ctx, at.key, object.Size()) })
	for first, id := true, at.from+skip; ; first, id = false, id+1 {
		l := readLine(reader)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case first && offset > 0 && l.id() != id:
			return errReplaced
		case errors.Is(l.err, io.EOF):
			return nil // what is left was cut off, and is no line
		case l.err != nil && !l.long():
			return fmt.Errorf("read a segment: %w", l.err)
		}
		if cut, err := l.cutOff(offset, end); cut || err != nil {
			return err
		}
		s.marks.note(at.key, id-at.from, offset)
		goOn, err := visit(id, l)
		if err == nil && goOn {
			_, err = l.WriteTo(io.Discard) // what the visitor did not want
		}
		if err != nil || !goOn {
			return err
		}
		offset += l.size
	}
}

// endOfLines is where the last whole line of an object ends: what comes after was cut off.
func (s *Store) endOfLines(ctx context.Context, key string, size int64) (int64, error) {
	part := make([]byte, 1) // as a rule it ends with its last byte
	for end := size; end > 0; {
		part = part[:min(int64(len(part)), end)]
		if err := s.readPart(ctx, key, end-int64(len(part)), part); err != nil {
			return 0, err
		}
		end -= int64(len(part))
		if at := bytes.LastIndexByte(part, '\n'); at >= 0 {
			return end + int64(at) + 1, nil
		}
		if len(part) == 1 {
			part = make([]byte, maxPart)
		}
	}
	return 0, nil
}

// maxPart is how much is read at once of what was cut off.
const maxPart = 1 << 20

func (s *Store) readPart(ctx context.Context, key string, offset int64, part []byte) error {
	object, err := s.bucket.NewRangeReader(ctx, key, offset, int64(len(part)), nil)
	switch {
	case absent(err):
		return errMoved
	case err != nil:
		return err
	}
	defer object.Close()
	_, err = io.ReadFull(object, part)
	return err
}

// Events visits those from an id on, each once and in order, until visit returns false.
func (s *Store) Events(ctx context.Context, uid string, from int, visit func(id int,
	event json.RawMessage) bool) error {
	return s.each(ctx, uid, from, whole(visit))
}

// Copy the events from an id on, a line each. It holds little of them at a time, however large they
// are and however slow the writer.
func (s *Store) Copy(ctx context.Context, uid string, from int, to io.Writer) error {
	return s.each(ctx, uid, from, copied(to))
}

func (s *Store) each(ctx context.Context, uid string, from int, visit visitor) error {
	const tries = 3
	for try := 1; ; try++ {
		next, err := s.events(ctx, uid, from, visit)
		if !errors.Is(err, errMoved) || try == tries {
			return err
		}
		from = next // those that are left are in another segment by now
	}
}

func (s *Store) events(ctx context.Context, uid string, next int, visit visitor) (int, error) {
	all, err := s.segments(ctx, uid)
	if err != nil {
		return next, err
	}
	if len(all) == 0 {
		return next, ErrNothing
	}
	return s.through(ctx, all, next, visit)
}

// through segments, from an event on. It returns the one that comes after those that were visited.
func (s *Store) through(ctx context.Context, all []segment, next int, visit visitor) (int, error) {
	goOn := true
	for i, segment := range all {
		if i > 0 && i+1 < len(all) && all[i+1].from <= next {
			continue // all of it is before; only the first may have been compacted, and reach further
		}
		err := s.lines(ctx, segment, next, func(id int, l *line) (_ bool, err error) {
			if id == next {
				next++
				goOn, err = visit(id, l)
			}
			return goOn, err
		})
		if err != nil || !goOn {
			return next, err
		}
	}
	return next, nil
}
