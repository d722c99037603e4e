package access

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parley-dev/parley/cmd/facade/answer"
)

const (
	// maxWork is how many bytes of bodies are worked on at once: decoded and checked, one takes
	// many times its length.
	maxWork = 16 << 20
	// userShare is the part of it that one user may have under way.
	userShare = 4
	// WorkPatience is how long a body waits for its turn.
	WorkPatience = 10 * time.Second
	// maxRead is how many bytes of bodies are read and waiting at most. It takes dozens of users
	// who each send all they may and then stop to come near it.
	maxRead = 192 << 20

	// lingerBytes and lingerTime are how much a client that was refused may still send, and for how
	// long: who is cut off while it writes may never read the answer.
	lingerBytes = 32 << 20
	lingerTime  = 5 * time.Second
)

// Bodies reads what users send. What one user has under way is bounded from when it is announced.
// What all have is bounded only once it is read: who sends slowly holds up nobody but themselves.
type Bodies struct {
	largest   int64
	announced *Shares
	read      *Shares
	work      *semaphore.Weighted
}

// NewBodies reads bodies up to a length.
func NewBodies(largest int64) *Bodies {
	most := max(maxWork, userShare*largest)
	return &Bodies{largest: largest, announced: NewShares(most/userShare, 0), read: NewShares(0, maxRead),
		work: semaphore.NewWeighted(most)}
}

// Read a body of a user. It is JSON whatever its declared type: a form on another site could
// declare another, but not send the key. Done must be called when the work on it is done, unless
// there is an error.
func (b *Bodies) Read(r *http.Request, user string) (body []byte, done func(), err error) {
	announced := r.ContentLength
	switch {
	case announced > b.largest:
		return nil, nil, answer.LargerThan(b.largest)
	case announced < 0:
		announced = b.largest
	}
	held := b.announced.For(user)
	if err := held.Take(announced); err != nil {
		return nil, nil, err
	}
	// Who waited to be told to go on sending is told so now.
	r.Header.Del("Expect")
	return b.take(r.Context(), r.Body, held)
}

// ReadFrame of a user's socket, which is not announced: it counts as it comes. Done is as that of
// Read.
func (b *Bodies) ReadFrame(ctx context.Context, frame io.Reader, user string) (body []byte, done func(), err error) {
	held := b.announced.For(user)
	return b.take(ctx, held.Reader(frame), held)
}

// take what is announced as held.
func (b *Bodies) take(ctx context.Context, from io.Reader, held *Held) (body []byte, done func(), err error) {
	defer func() {
		if err != nil {
			held.Release()
		}
	}()
	read := b.read.For(held.user)
	defer read.Release()
	body, err = io.ReadAll(read.Reader(http.MaxBytesReader(nil, io.NopCloser(from), b.largest)))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, nil, answer.LargerThan(b.largest)
	case errors.Is(err, overloaded), errors.Is(err, tooMuch):
		return nil, nil, err
	case err != nil:
		return nil, nil, answer.Refuse(http.StatusBadRequest, "The body could not be read")
	}
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), WorkPatience)
	defer cancel()
	size := int64(len(body))
	if b.work.Acquire(waiting, size) != nil {
		return nil, nil, overloaded
	}
	return body, func() {
		b.work.Release(size)
		held.Release()
	}, nil
}

// TurnAway a client before its body is read to the end: answer, and then read on for a bounded
// amount and time, so that it gets to read the answer. Many clients do not until they have sent
// everything.
func TurnAway(w http.ResponseWriter, r *http.Request, err error) {
	connection := http.NewResponseController(w)
	// What a connection cannot do it says here, and is closed without delay then.
	_ = connection.EnableFullDuplex()
	w.Header().Set("Connection", "close")
	answer.Write(w, nil, err)
	// Who waits to be told to go on sending has not sent anything.
	if r.Body == nil || r.Header.Get("Expect") != "" || connection.Flush() != nil ||
		connection.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
}
