package limits

import (
	"context"
	"io"
	"net/http"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

const (
	// maxWork limits the bytes of bodies that are processed at the same time.
	maxWork = 16 << 20
	// One user's bodies may take at most 1/userShare of the bytes that are processed at the same
	// time.
	userShare = 4
)

// ReadBody reads the body of a user's request. Its Content-Length counts towards the user's limit
// from the start. Only bytes that have arrived count towards the total, so that a slow sender does
// not delay other users. Any Content-Type is accepted, also that of an HTML form: a form on another
// site cannot send the session key, and the facade accepts the cookie only from its own page. The
// caller must call done() after the work on the body. After an error, done is nil.
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
	// The read below makes the server send "100 Continue", and the client then sends its body. Delete
	// the header Expect, because TurnAway discards no body while this header is set.
	r.Header.Del("Expect")
	return b.read(r.Context(), r.Body, hold)
}

// ReadFrame reads a frame of a user's socket. Each byte counts towards the user's limit when it
// arrives, because the frame's length is not known in advance. The caller must call done(), as for
// ReadBody.
func (b *Budget) ReadFrame(ctx context.Context, frame io.Reader, user string) (body []byte, done func(), err error) {
	hold := b.Hold(user, Bodies)
	return b.read(ctx, hold.Reader(ctx, frame), hold)
}

func (b *Budget) read(ctx context.Context, from io.Reader, hold *Hold) (body []byte, done func(), err error) {
	defer func() {
		if err != nil {
			hold.Release()
		}
	}()
	received := b.Hold(hold.user, Received)
	defer received.Release()
	if body, err = answer.ReadBody(received.Reader(ctx, from), b.maxBody); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), MaxWait)
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
