package archive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	visit := func(id int, line []byte) bool {
		if id == 0 {
			fresh.journal = session.JournalName(line)
		}
		if id >= fresh.next {
			fresh.next, fresh.last = id+1, session.JournalName(line)
		}
		return true
	}
	// One that was compacted may reach further than those that it took the place of.
	if err := s.lines(ctx, all[0], visit); err != nil {
		return fresh, err
	}
	// The last may have been cut off before it had an event.
	for i := len(all) - 1; i > 0 && fresh.next <= all[i].from; i-- {
		if err := s.lines(ctx, all[i], visit); err != nil {
			return fresh, err
		}
	}
	return fresh, nil
}

// errMoved says that a segment was compacted or deleted since it was listed.
var errMoved = errors.New("the segment is no longer there")

// lines visits those of a segment until visit returns false.
func (s *Store) lines(ctx context.Context, at segment, visit func(id int, line []byte) bool) (err error) {
	object, err := s.bucket.NewReader(ctx, at.key, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return errMoved
	}
	if err != nil {
		return fmt.Errorf("read a segment: %w", err)
	}
	defer func() { err = errors.Join(err, object.Close()) }()
	reader := bufio.NewReaderSize(object, 64<<10)
	for id := at.from; ; id++ {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what is left was cut off, and is no line
		}
		if err != nil {
			return fmt.Errorf("read a segment: %w", err)
		}
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
		err := s.lines(ctx, segment, func(id int, line []byte) bool {
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
