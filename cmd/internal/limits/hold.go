package limits

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/time/rate"
)

// Hold is the amount of a resource that one request occupies.
type Hold struct {
	budget   *Budget
	resource Resource
	user     string
	size     int64
	// wanted is the size that the hold needed at the last refused Take. Retry waits for this size.
	wanted int64
}

// Hold returns an empty hold for a user.
func (b *Budget) Hold(user string, r Resource) *Hold {
	return &Hold{budget: b, resource: r, user: user}
}

// User returns the user of the hold.
func (h *Hold) User() string { return h.user }

// Take adds size to the hold, or returns a refusal. A negative size releases that amount.
func (h *Hold) Take(size int64) error {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	if size > 0 {
		if err := h.budget.refusal(h.user, h.resource, size); err != nil {
			h.wanted = h.size + size
			return err
		}
	}
	h.budget.add(h.user, h.resource, size)
	h.size += size
	return nil
}

// Wait waits until size can be added to the hold, or until the context ends.
func (h *Hold) Wait(ctx context.Context, size int64) error {
	err := h.budget.wait(ctx, h.user, h.resource, size)
	if err == nil {
		h.size += size
	}
	return err
}

// Release releases the whole hold.
func (h *Hold) Release() {
	if h.size != 0 {
		_ = h.Take(-h.size)
	}
}

// Pace counts the bytes that the facade read from a session's response. It waits if the user
// exceeds responseRate. Each byte costs CPU time, even if the client never gets it.
func (h *Hold) Pace(ctx context.Context, size int) error {
	if h.readRate().WaitN(ctx, min(size, responseBurst)) != nil {
		return userBusy
	}
	return nil
}

// copiesPerRead is how many bytes the facade can copy unchanged with the CPU time that it needs to
// read one byte of a response that it parses.
const copiesPerRead = 4

// Download returns a reader for a response that the facade copies unchanged. Pace counts a part of
// its bytes.
func (h *Hold) Download(ctx context.Context, from io.Reader) io.Reader {
	return &download{ctx, from, h}
}

type download struct {
	ctx context.Context //nolint:containedctx // Read has no parameter for it
	io.Reader
	hold *Hold
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if refused := d.hold.Pace(d.ctx, (n+copiesPerRead-1)/copiesPerRead); refused != nil {
		return n, refused
	}
	return n, err
}

// Charge counts bytes like Pace, but does not wait. The user's next call of Pace waits longer. Use
// Charge while the caller occupies a resource that all users share: a wait would also delay other
// users.
func (h *Hold) Charge(size int) { h.readRate().ReserveN(time.Now(), min(size, responseBurst)) }

func (h *Hold) readRate() *rate.Limiter {
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	a := h.budget.account(h.user)
	if a.responses == nil {
		a.responses = rate.NewLimiter(responseRate, responseBurst)
	}
	return a.responses
}

// Reader returns a reader whose bytes count towards the hold. A nil hold counts nothing.
func (h *Hold) Reader(ctx context.Context, from io.Reader) io.Reader {
	if h == nil {
		return from
	}
	return &reader{ctx, from, h}
}

type reader struct {
	ctx context.Context //nolint:containedctx // Read has no parameter for it
	io.Reader
	hold *Hold
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	refused := r.hold.Take(int64(n))
	if refused == nil && r.hold.resource == Responses {
		refused = r.hold.Pace(r.ctx, n)
	}
	if refused != nil {
		return n, refused
	}
	return n, err
}

// Retry calls work(), which adds amounts to the hold. If an amount is refused, Retry releases the
// hold, waits until there is room, and calls work() again. Retry gives up when MaxWait has passed
// since the first refusal.
func (h *Hold) Retry(ctx context.Context, work func() error) error {
	for refused := false; ; refused = true {
		h.Release()
		h.wanted = 0
		err := work()
		if h.wanted == 0 || !errors.Is(err, userBusy) && !errors.Is(err, allBusy) {
			return err
		}
		h.Release()
		if !refused {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, MaxWait)
			defer cancel()
		}
		if ctx.Err() != nil || h.Wait(ctx, h.wanted) != nil {
			return err
		}
	}
}
