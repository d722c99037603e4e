package handover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// Keeper hands a journal over.
type Keeper struct {
	archive *Archive
	journal *journal.Journal
	// next is the event that the archive wants next; negative while that is not known.
	next int
	// refused is why nothing more is handed over.
	refused error
}

// Keep a journal in the archive.
func (a *Archive) Keep(j *journal.Journal) *Keeper { return &Keeper{archive: a, journal: j, next: -1} }

// Run hands over what comes until ctx ends. A facade that is away loses nothing: it gets what it
// lacks when it is back.
func (k *Keeper) Run(ctx context.Context) {
	for k.refused == nil && ctx.Err() == nil && (k.next < 0 || k.worthIt(ctx)) {
		err := insist(ctx, firstBackOff, lastBackOff, func(ctx context.Context) error {
			err := k.hand(ctx)
			if err != nil && !errors.Is(err, ErrGone) && ctx.Err() == nil {
				k.archive.log.Warn("the archive did not take the events; trying again", "error", err)
			}
			return err
		}, ErrGone)
		if errors.Is(err, ErrGone) {
			_ = k.refuse(err)
		}
	}
}

// worthIt waits until there is something to hand over, and a little longer, so that it is more.
func (k *Keeper) worthIt(ctx context.Context) bool {
	select {
	case <-k.journal.More(k.next):
	case <-ctx.Done():
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for k.journal.Size(k.next) < enough {
		select {
		case <-k.journal.More(k.journal.Len()):
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// hand over one segment, after asking what is wanted where that is not known.
func (k *Keeper) hand(ctx context.Context) error {
	select { // before the first event there is no journal to name
	case <-k.journal.More(0):
	case <-ctx.Done():
		return ctx.Err()
	}
	journal, err := k.name(0)
	if err != nil {
		return err
	}
	if k.next < 0 {
		position, err := k.archive.position(ctx, http.MethodGet, "", nil, nil)
		if err != nil {
			return err
		}
		return k.agree(ctx, position, journal)
	}
	segment, count, err := k.segment()
	if err != nil || count == 0 {
		return err
	}
	query := url.Values{session.ArchiveFrom: {strconv.Itoa(k.next)}, session.ArchiveJournal: {journal}}
	if k.next > 0 {
		previous, err := k.name(k.next - 1)
		if err != nil {
			return err
		}
		query.Set(session.ArchivePrevious, previous)
	}
	position, err := k.archive.position(ctx, http.MethodPost, session.ArchiveEvents, query, segment)
	switch {
	case errors.Is(err, errRefused):
		return k.refuse(err)
	case errors.Is(err, errOther):
		k.next = -1
		return err
	case err != nil:
		return err
	}
	return k.agree(ctx, position, journal)
}

// agree on what is wanted next, if what the archive has is of this journal. Else this one began
// anew while the archive was away, or an attempt that was taken for dead goes on elsewhere: what is
// kept is put aside. The archive does so for the latest attempt only.
func (k *Keeper) agree(ctx context.Context, position session.ArchivePosition, journal string) error {
	mine := position.Next == 0
	if !mine && position.Next <= k.journal.Len() && (position.Journal == "" || position.Journal == journal) {
		last, err := k.name(position.Next - 1)
		if err != nil {
			return err
		}
		mine = position.Last == "" || position.Last == last // those that say less are older
	}
	if mine {
		k.next = position.Next
		return nil
	}
	k.next = -1 // it is asked again what it wants
	k.archive.log.Warn("the archive has the events of another journal: they are put aside, and kept")
	_, err := k.archive.position(ctx, http.MethodPost, session.ArchiveAside, nil, nil)
	if errors.Is(err, errRefused) {
		return k.refuse(err)
	}
	return err
}

// name of an event.
func (k *Keeper) name(id int) (string, error) {
	lines, err := k.journal.Lines(id, id+1)
	if err != nil || len(lines) == 0 {
		return "", fmt.Errorf("event %d cannot be read: %w", id, err)
	}
	return session.JournalName(lines[0]), nil
}

// refuse to go on, and say so once.
func (k *Keeper) refuse(err error) error {
	k.refused = err
	level := slog.LevelError
	if errors.Is(err, ErrGone) {
		level = slog.LevelInfo
	}
	k.archive.log.Log(context.Background(), level, "the events are not kept in the archive any more", "error", err)
	return nil
}

// segment of what is wanted next: at least one event, and not much more than enough.
func (k *Keeper) segment() (text []byte, count int, err error) {
	for len(text) < enough {
		lines, err := k.journal.Lines(k.next+count, k.next+count+1)
		if err != nil {
			return nil, 0, err
		}
		if len(lines) == 0 {
			break
		}
		text = append(append(text, lines[0]...), '\n')
		count++
	}
	return text, count, nil
}

// Finish hands the rest over, and then what the session leaves besides, for as long as ctx allows.
// What that is may take long to find out, so it is only asked for then. Run must have returned.
func (k *Keeper) Finish(ctx context.Context, ending func(context.Context) *session.Ending) error {
	if errors.Is(k.refused, errFull) {
		k.refused = nil // there may be room by now
	}
	err := insist(ctx, firstInsisted, lastInsisted, k.handRest, ErrGone, errRefused)
	// An archive that keeps no more events still takes what came of them.
	if err != nil && !errors.Is(err, errFull) || k.journal.Len() == 0 {
		return err
	}
	left := ending(ctx)
	return errors.Join(err, insist(ctx, firstInsisted, lastInsisted,
		func(ctx context.Context) error { return k.end(ctx, left) }, ErrGone, errRefused))
}

// insist retries with a backoff until it succeeds, fails with a final error, or ctx ends.
func insist(ctx context.Context, wait, longest time.Duration, try func(context.Context) error, final ...error) error {
	for ; ; wait = min(2*wait, longest) {
		err := try(ctx)
		if err == nil || slices.ContainsFunc(final, func(target error) bool { return errors.Is(err, target) }) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

func (k *Keeper) handRest(ctx context.Context) error {
	for k.refused == nil && k.journal.Len() > 0 && k.next < k.journal.Len() {
		if err := k.hand(ctx); err != nil {
			return err
		}
	}
	return k.refused
}

// end hands over what a session leaves at its end, or as much of it as the archive takes.
func (k *Keeper) end(ctx context.Context, ending *session.Ending) error {
	less := *ending
	err := k.post(ctx, &less)
	if errors.Is(err, errFull) {
		less.Changes = slices.Clone(less.Changes)
		for i := range less.Changes {
			less.Changes[i].Diff = nil
		}
		err = k.post(ctx, &less)
	}
	if errors.Is(err, errFull) {
		less.Patch = "The difference is left out: it is too large to keep.\n"
		err = k.post(ctx, &less)
	}
	if errors.Is(err, errFull) {
		less.Changes = nil
		err = k.post(ctx, &less)
	}
	return err
}

func (k *Keeper) post(ctx context.Context, ending *session.Ending) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // it would make six bytes of many a one in a program's text
	if err := encoder.Encode(ending); err != nil {
		return err
	}
	if text.Len() > session.MaxArchived {
		return errFull
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := k.archive.ask(ctx, http.MethodPost, session.ArchiveEnd, nil, text.Bytes())
	if err != nil {
		return err
	}
	return response.Body.Close()
}
