package limits

import (
	"context"
	"io"
	"net/http"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

const (
	// maxWork is how many bytes of bodies are worked on at once.
	maxWork = 16 << 20
	// userShare is the part of it that one user may have in flight.
	userShare = 4
)

// ReadBody of a user's request. It counts for its user from when it is announced, and for all only
// once it is read: a slow sender holds up nobody else. The body is JSON whatever its declared type: a
// form on another site could declare another, but not send the key. done must be called after the
// work on the body, unless there is an error.
func (b *Budget) ReadBody(r *http.Request, user string) (body []byte, done func(), err error) {
	announced := r.ContentLength
	switch {
	case announced > b.maxBody:
		return nil, nil, answer.LargerThan(b.maxBody)
	case announced < 0:
		announced = b.maxBody
	}
	hold := b.Hold(user, Bodies)
	if err := hold.Take(announced); err != nil {
		return nil, nil, err
	}
	// A client that waits for permission to send the body gets it now.
	r.Header.Del("Expect")
	return b.read(r.Context(), r.Body, hold)
}

// ReadFrame of a user's socket. A frame does not announce its length, so it counts as it comes. done
// is as that of ReadBody.
func (b *Budget) ReadFrame(ctx context.Context, frame io.Reader, user string) (body []byte, done func(), err error) {
	hold := b.Hold(user, Bodies)
	return b.read(ctx, hold.Reader(frame), hold)
}

func (b *Budget) read(ctx context.Context, from io.Reader, hold *Hold) (body []byte, done func(), err error) {
	defer func() {
		if err != nil {
			hold.Release()
		}
	}()
	received := b.Hold(hold.user, Received)
	defer received.Release()
	if body, err = answer.ReadBody(received.Reader(from), b.maxBody); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Patience)
	defer cancel()
	work := b.Hold(hold.user, Work)
	if err := work.Wait(ctx, int64(len(body))); err != nil {
		return nil, nil, err
	}
	return body, func() {
		work.Release()
		hold.Release()
	}, nil
}
