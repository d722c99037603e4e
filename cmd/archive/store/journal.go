package store

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A journal is a directory of segments, each named by the ID of its first event. The first journal
// of a Conversation is in events/. Later journals are in events-1/, events-2/ and so on, because
// segments of two journals may have the same name. Older versions merged the segments of an ended
// session into the first segment. If a merge was interrupted, some later segments still exist, and
// the first segment contains their events too. copySegments writes each of these events only once.
const eventsDir = "events"

// journal is one list of a session's events, starting with event 0.
type journal struct {
	number   int
	segments []segment
}

// segment is an object with consecutive events of a journal.
type segment struct {
	key  string
	from int
	size int64
}

func segmentKey(uid string, journal, from int) string {
	dir := eventsDir
	if journal > 0 {
		dir = fmt.Sprintf("%s-%d", eventsDir, journal)
	}
	return fmt.Sprintf("%s/%s/%012d", uid, dir, from)
}

// journals returns the journals of a Conversation: the current journal, which may be empty, then
// earlier journals, the latest first.
func (s *Store) journals(ctx context.Context, uid string) ([]journal, error) {
	byNumber := map[int]*journal{0: {}}
	err := s.bucket.list(ctx, uid+"/", func(found entry) {
		dir, name, _ := strings.Cut(strings.TrimPrefix(found.key, uid+"/"), "/")
		suffix, isJournal := strings.CutPrefix(dir, eventsDir)
		from, err := strconv.Atoi(name)
		if !isJournal || err != nil {
			return
		}
		number, _ := strconv.Atoi(strings.TrimPrefix(suffix, "-"))
		if byNumber[number] == nil {
			byNumber[number] = &journal{number: number}
		}
		of := byNumber[number]
		of.segments = append(of.segments, segment{key: found.key, from: from, size: found.size})
	})
	if err != nil {
		return nil, fmt.Errorf("list the segments: %w", err)
	}
	var all []journal
	for _, of := range byNumber {
		slices.SortFunc(of.segments, func(a, b segment) int { return cmp.Compare(a.from, b.from) })
		all = append(all, *of)
	}
	slices.SortFunc(all, func(a, b journal) int { return cmp.Compare(b.number, a.number) })
	return all, nil
}

// extent describes the end of a Conversation's current journal.
type extent struct {
	number   int
	segments []segment
	next     int
	// last is the name of the last event, as session.JournalName returns it.
	last string
	// size is the size of all journals.
	size int64
}

func (s *Store) extentOf(ctx context.Context, uid string) (extent, error) {
	all, err := s.journals(ctx, uid)
	if err != nil {
		return extent{}, err
	}
	now := extent{number: all[0].number, segments: all[0].segments}
	for _, of := range all {
		for _, segment := range of.segments {
			now.size += segment.size
		}
	}
	// Read the last segment that contains events. Empty segments may follow it.
	for i := len(now.segments) - 1; i >= 0 && now.next == 0; i-- {
		last := newNamer()
		err := s.lines(ctx, now.segments[i], func(id int) io.Writer {
			now.next = id + 1
			last.Reset()
			return last
		})
		if err != nil {
			return extent{}, err
		}
		now.last = last.name()
	}
	return now, nil
}

// nameJournal returns the name of a journal, or "" if the journal is empty. The name is the
// session.JournalName of the first event.
func (s *Store) nameJournal(ctx context.Context, of extent) (string, error) {
	first := newNamer()
	if of.next == 0 {
		return "", nil
	}
	err := s.lines(ctx, of.segments[0], func(id int) io.Writer {
		if id > of.segments[0].from {
			return nil
		}
		return first
	})
	return first.name(), err
}

// Copy writes a journal's events that have an ID >= from, one per line. The parameter earlier
// selects the journal: 0 is the current journal, 1 is the journal before it, and so on. Copy uses
// little memory even for large events and slow writers.
func (s *Store) Copy(ctx context.Context, uid string, earlier, from int, to io.Writer) error {
	return retryChanged(func() error {
		all, err := s.journals(ctx, uid)
		if err != nil {
			return err
		}
		if earlier >= len(all) || len(all[earlier].segments) == 0 {
			return ErrNothing
		}
		from, err = s.copySegments(ctx, all[earlier].segments, from, to)
		return err
	})
}

// copySegments writes the events with an ID >= next. It returns the ID after the last event.
func (s *Store) copySegments(ctx context.Context, all []segment, next int, to io.Writer) (int, error) {
	for i, segment := range all {
		if i+1 < len(all) && all[i+1].from <= next {
			continue
		}
		err := s.lines(ctx, segment, func(id int) io.Writer {
			if id != next {
				return io.Discard
			}
			next++
			return to
		})
		if err != nil {
			return next, err
		}
	}
	return next, nil
}

// StartJournal starts a new journal, and keeps the current journal as an earlier journal. A session
// needs a new journal if its own events differ from the stored events: one journal cannot contain
// two events with the same ID.
func (s *Store) StartJournal(ctx context.Context, uid string, attempt int) error {
	return retryChanged(func() error {
		now, err := s.extentOf(ctx, uid)
		if err != nil {
			return err
		}
		if err := s.claim(ctx, uid, attempt); err != nil || now.next == 0 {
			return err
		}
		// An empty segment starts the next journal.
		err = s.bucket.put(ctx, segmentKey(uid, now.number+1, 0), linesType, nil, condition{absent: true})
		if err != nil {
			return fmt.Errorf("start a new journal: %w", err)
		}
		return nil
	})
}
