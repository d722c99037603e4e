package handover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// Keeper sends a journal to the archive while the journal grows.
type Keeper struct {
	archive *Archive
	journal *journal.Journal
	// next is the next event that the archive needs. It is negative if the archive's position is
	// unknown.
	next int
	// refused is the error after which no more events are sent, or nil.
	refused error
	// flushes receives a channel from each call to Flush.
	flushes chan chan struct{}
	// flushing are the channels that Run has received. Run closes them when the archive has the
	// whole journal.
	flushing []chan struct{}
	stopped  chan struct{}
	// failing is set if the last request to the archive failed.
	failing atomic.Bool
	// archived is the number of events that the archive has.
	archived atomic.Int64
}

// Keep returns a Keeper for a journal.
func (a *Archive) Keep(j *journal.Journal) *Keeper {
	return &Keeper{archive: a, journal: j, next: -1, flushes: make(chan chan struct{}), stopped: make(chan struct{})}
}

// Run hands over events until ctx ends. If the archive is unavailable, Run sends the missing events
// later.
func (k *Keeper) Run(ctx context.Context) {
	defer close(k.stopped)
	for k.refused == nil && ctx.Err() == nil && k.awaitSegment(ctx) {
		err := retry(ctx, firstBackOff, lastBackOff, func(ctx context.Context) error {
			err := k.handOver(ctx)
			k.failing.Store(err != nil)
			if err != nil && !errors.Is(err, ErrGone) && ctx.Err() == nil {
				k.archive.log.Warn("sending events to the archive failed; retrying", "error", err)
			}
			return err
		}, ErrGone)
		if errors.Is(err, ErrGone) {
			_ = k.refuse(err)
		}
	}
}

// Flush hands over the journal immediately and waits until the archive has it. If the archive
// cannot be reached, Flush returns after flushTimeout. Further calls then return immediately, until
// a request to the archive succeeds. On a nil Keeper, Flush does nothing.
func (k *Keeper) Flush(ctx context.Context) {
	if k == nil || k.failing.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	done := make(chan struct{})
	select {
	case k.flushes <- done:
	case <-k.stopped:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-k.stopped:
	case <-ctx.Done():
	}
}

// Complete reports whether the archive has the whole journal. It returns false for a nil Keeper.
func (k *Keeper) Complete() bool { return k != nil && int(k.archived.Load()) >= k.journal.Len() }

// awaitSegment waits until the next segment is complete. A segment is complete if it is large
// enough, if segmentDelay has passed since its first event, or if Flush is called. While the
// archive's position is unknown, the segment begins with the first event of the journal, and its
// size is ignored: a restored journal may be large, although the archive has all its events.
func (k *Keeper) awaitSegment(ctx context.Context) bool {
	if k.next >= k.journal.Len() {
		for _, done := range k.flushing {
			close(done)
		}
		k.flushing = nil
	}
	var timer <-chan time.Time
	next := max(0, k.next)
	for len(k.flushing) == 0 && (k.next < 0 || k.journal.Size(next) < segmentBytes) {
		if timer == nil && next < k.journal.Len() {
			timer = time.After(segmentDelay)
		}
		select {
		case <-k.journal.More(k.journal.Len()):
		case <-timer:
			return true
		case done := <-k.flushes:
			k.flushing = append(k.flushing, done)
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// handOver hands over one segment. If the archive's position is unknown, it first requests the
// position.
func (k *Keeper) handOver(ctx context.Context) error {
	select { // wait for the first event, from which the journal's name is computed
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
		if err := k.alignPosition(ctx, position, journal); err != nil || k.next < 0 {
			return err
		}
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
	case errors.Is(err, errOtherJournal):
		k.next = -1
		return err
	case err != nil:
		return err
	}
	return k.alignPosition(ctx, position, journal)
}

// alignPosition makes the Keeper continue after the archived events if these events belong to this
// journal. Otherwise, it asks the archive to store the archived events as an earlier journal. The
// archive accepts this request only from the latest attempt. The archived events belong to another
// journal in two cases: this journal was started while the archive was unavailable, or two attempts
// of the session write at the same time.
func (k *Keeper) alignPosition(ctx context.Context, position session.ArchivePosition, journal string) error {
	mine := position.Next == 0
	if !mine && position.Next <= k.journal.Len() && (position.Journal == "" || position.Journal == journal) {
		last, err := k.name(position.Next - 1)
		if err != nil {
			return err
		}
		mine = position.Last == "" || position.Last == last // an archive of an older version does not send Last
	}
	if mine {
		k.next = position.Next
		k.archived.Store(int64(k.next))
		return nil
	}
	k.archived.Store(0)
	k.next = -1 // until the archive has started the new journal
	k.archive.log.Warn("the archive has events of another journal; starting a new journal in the archive")
	_, err := k.archive.position(ctx, http.MethodPost, session.ArchiveNewJournal, nil, nil)
	switch {
	case errors.Is(err, errRefused):
		return k.refuse(err)
	case err == nil:
		k.next = 0
	}
	return err
}

func (k *Keeper) name(id int) (string, error) {
	line, err := k.journal.Line(id)
	if err != nil {
		return "", err
	}
	return session.JournalName(line), nil
}

func (k *Keeper) refuse(err error) error {
	k.refused = err
	level := slog.LevelError
	if errors.Is(err, ErrGone) {
		level = slog.LevelInfo
	}
	k.archive.log.Log(context.Background(), level, "events are no longer archived", "error", err)
	return nil
}

func (k *Keeper) segment() (text []byte, count int, err error) {
	for len(text) < segmentBytes {
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

// Finish hands over the rest of the journal and then the result of ending(). It retries until ctx
// ends or the archive refuses the data. It calls ending() last, because that call may take long.
// Call Finish only after Run has returned.
func (k *Keeper) Finish(ctx context.Context, ending func(context.Context) *session.Ending) error {
	if errors.Is(k.refused, errFull) {
		k.refused = nil // the archive may have room now
	}
	err := retry(ctx, firstShortBackOff, lastShortBackOff, k.handRest, ErrGone, errRefused)
	// If the archive is full, send the ending anyway: a full archive refuses events, but accepts
	// the ending.
	if err != nil && !errors.Is(err, errFull) || k.journal.Len() == 0 {
		return err
	}
	left := ending(ctx)
	return errors.Join(err, retry(ctx, firstShortBackOff, lastShortBackOff,
		func(ctx context.Context) error { return k.end(ctx, left) }, ErrGone, errRefused))
}

// retry calls try() until try() succeeds, try() returns a final error, or ctx ends. The wait
// between two calls doubles, up to the longest wait.
func retry(ctx context.Context, wait, longest time.Duration, try func(context.Context) error, final ...error) error {
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
		if err := k.handOver(ctx); err != nil {
			return err
		}
	}
	return k.refused
}

// end hands over the ending. If the archive refuses the ending because of its size, more and more
// parts of the ending are left out.
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
		less.Patch = "The diff is omitted: it is too large for the archive.\n"
		err = k.post(ctx, &less)
	}
	if errors.Is(err, errFull) {
		less.Changes, less.Unrestored = nil, true
		err = k.post(ctx, &less)
	}
	return err
}

func (k *Keeper) post(ctx context.Context, ending *session.Ending) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // HTML escapes would turn many single bytes of source code into six
	if err := encoder.Encode(ending); err != nil {
		return err
	}
	if text.Len() > session.MaxArchived {
		return errFull
	}
	_, err := k.archive.position(ctx, http.MethodPost, session.ArchiveEnd, nil, text.Bytes())
	return err
}
