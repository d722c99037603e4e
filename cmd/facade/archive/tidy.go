package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"gocloud.dev/blob"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// tidyings is how many conversations' segments are joined at once.
	tidyings = 2
	// tidyTimeout bounds one of them, so that a bucket that hangs does not hold up the others for
	// ever.
	tidyTimeout = 10 * time.Minute
	// segmentWorth is how much may be written anew to be rid of one segment, beside what it holds.
	segmentWorth = 1 << 20
)

// tidier makes one segment of many in the background: a session that ends may be killed while it
// waits.
type tidier struct {
	ctx   context.Context
	stop  context.CancelFunc
	slots chan struct{}
	all   sync.WaitGroup

	mu sync.Mutex
	// under are those that wait or are under way, by the UID of their conversation.
	under map[string]*tidying
}

type tidying struct {
	cancel context.CancelFunc
	done   chan struct{}
	// next is what comes when there is a place, and what was under way then has ended; else it is nil.
	next func(ctx context.Context) error
}

func newTidier(ctx context.Context) *tidier {
	t := &tidier{slots: make(chan struct{}, tidyings), under: map[string]*tidying{}}
	t.ctx, t.stop = context.WithCancel(ctx)
	return t
}

// start a tidying. If there is one of this conversation, it comes after that: a session that ends
// again may have left more, and what an earlier attempt began is not done for a later one.
func (t *tidier) start(uid string, join func(ctx context.Context) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine := t.under[uid]; mine != nil {
		mine.next = join
		return
	}
	if t.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(t.ctx)
	mine := &tidying{cancel: cancel, done: make(chan struct{}), next: join}
	t.under[uid] = mine
	t.all.Go(func() {
		for t.goesOn(ctx, uid, mine) {
			t.one(ctx, uid, mine)
		}
	})
}

// goesOn says whether there is more to do for a conversation; else it has ended.
func (t *tidier) goesOn(ctx context.Context, uid string, mine *tidying) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mine.next != nil && ctx.Err() == nil {
		return true
	}
	delete(t.under, uid)
	mine.cancel()
	close(mine.done)
	return false
}

func (t *tidier) one(ctx context.Context, uid string, mine *tidying) {
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return
	}
	t.mu.Lock()
	join := mine.next
	mine.next = nil
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, tidyTimeout)
	defer cancel()
	if err := join(ctx); err != nil && !errors.Is(err, context.Canceled) { // what is not joined is read all the same
		logf.FromContext(ctx).Info("What a session left could not be compacted", "uid", uid, "reason", err.Error())
	}
}

// has says whether a conversation is tidied.
func (t *tidier) has(uid string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.under[uid] != nil
}

// forgo the tidying of a conversation, and wait until it has ended.
func (t *tidier) forgo(ctx context.Context, uid string) error {
	t.mu.Lock()
	mine := t.under[uid]
	t.mu.Unlock()
	if mine == nil {
		return nil
	}
	mine.cancel()
	select {
	case <-mine.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends all of them.
func (t *tidier) close() {
	t.mu.Lock()
	t.stop()
	t.mu.Unlock()
	t.all.Wait()
}

// compact writes all events into the first segment and removes the others, unless an attempt after
// the one that ended may have put them aside. Whenever it is killed, readers find each event once.
// It holds nobody up: what takes long is done before it looks whether all is as it was, and between
// any two steps others may come.
func (s *Store) compact(ctx context.Context, uid string, attempt int) error {
	st := s.state(uid)
	st.mu.Lock()
	replaced := st.replaced
	st.mu.Unlock()
	ours := func(ctx context.Context) error {
		if err := st.unless(replaced); err != nil {
			return err
		}
		return s.unclaimed(ctx, uid, attempt)
	}
	if err := s.unclaimed(ctx, uid, attempt); err != nil {
		return err
	}
	all, err := s.segments(ctx, uid)
	if err != nil || len(all) < 2 || all[0].from != 0 {
		return err
	}
	next, err := s.endOf(ctx, all[0]) // one that was cut off may have left segments that it holds
	if err == nil {
		all, err = s.removeHeld(ctx, st, ours, all, next)
	}
	if err != nil || len(all) < 2 || !worthwhile(all, st.wasted) {
		return err
	}
	next, wrote, err := s.join(ctx, uid, st, ours, all)
	if err != nil {
		st.wasted += wrote
		return fmt.Errorf("compact: %w", err)
	}
	st.wasted = 0
	if _, err = s.removeHeld(ctx, st, ours, all, next); err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return s.recount(ctx, uid)
}

// endOf is which event comes next after those of a segment.
func (s *Store) endOf(ctx context.Context, at segment) (next int, err error) {
	err = s.lines(ctx, at, math.MaxInt, func(id int, _ *line) (bool, error) {
		next = id + 1
		return true, nil
	})
	return next, err
}

// removeHeld removes the segments whose events the first holds, too, since it was written anew: those
// that begin before it ends. One that begins there may have been cut off before its first event: who
// writes that again writes it there. It returns those that are left.
func (s *Store) removeHeld(ctx context.Context, st *state, ours func(context.Context) error, all []segment,
	next int) (left []segment, err error) {
	for _, segment := range all[1:] {
		if segment.from >= next {
			left = append(left, segment)
		} else if err := s.removeIf(ctx, st, ours, segment.key); err != nil {
			return nil, err
		}
	}
	return append(all[:1:1], left...), nil
}

// join writes the events of all segments into the first. It returns which comes next after those,
// and how much it wrote, though it may have been in vain.
func (s *Store) join(ctx context.Context, uid string, st *state, ours func(context.Context) error,
	all []segment) (next int, wrote int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	content := func(w io.Writer) (err error) {
		write := copied(w)
		next, err = s.through(ctx, all, 0, func(id int, l *line) (bool, error) {
			goOn, err := write(id, l)
			wrote += l.size
			return goOn, err
		})
		return err
	}
	unchanged, err := s.unchanged(ctx, all[0].key)
	if err != nil {
		return 0, 0, err
	}
	locked, held, options := false, (*time.Timer)(nil), &blob.WriterOptions{ContentType: linesType, BeforeWrite: unchanged}
	err = s.writeIf(ctx, all[0].key, options, content, func() error {
		if err := s.failed(ctx, "commit", all[0].key); err != nil {
			return err
		}
		st.mu.Lock() // what another attempt puts aside meanwhile must not come back
		locked = true
		held = time.AfterFunc(requestTimeout, cancel) // others wait from now on
		if err := s.still(ctx, uid, all); err != nil {
			return err
		}
		return ours(ctx)
	})
	if locked {
		held.Stop()
		st.mu.Unlock()
	}
	return next, wrote, err
}

// worthwhile says whether there is enough after the first segment to write that anew, beside what
// was written in vain: else a session that ends again and again would have all that is kept of it
// rewritten each time.
func worthwhile(all []segment, wasted int64) bool {
	worth := int64(0)
	for _, segment := range all[1:] {
		worth += segment.size + segmentWorth
	}
	return worth >= all[0].size+wasted
}

// still has no error where these segments are as they were, whatever came after them. Another
// process that has the bucket may have put them aside.
func (s *Store) still(ctx context.Context, uid string, before []segment) error {
	now, err := s.segments(ctx, uid)
	if err == nil && (len(now) < len(before) || !slices.Equal(now[:len(before)], before)) {
		err = errMoved
	}
	return err
}

// unless segments were put aside or written anew since a time, there is no error.
func (st *state) unless(replaced int) error {
	if st.replaced != replaced {
		return errMoved
	}
	return nil
}

// unclaimed has no error unless an attempt after this one claimed the conversation, perhaps through
// another facade: its segments may have the same names. A directory has one facade, which knows what
// was replaced.
func (s *Store) unclaimed(ctx context.Context, uid string, attempt int) error {
	if s.dir != "" {
		return nil
	}
	latest, err := s.latest(ctx, uid)
	if err == nil && latest > attempt {
		err = ErrSuperseded
	}
	return err
}

func (s *Store) removeIf(ctx context.Context, st *state, ours func(context.Context) error, key string) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := ours(ctx); err != nil {
		return err
	}
	return s.remove(ctx, key)
}
