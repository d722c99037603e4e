package access

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parley-dev/parley/cmd/facade/answer"
)

const (
	// maxWork is how many bytes of bodies are worked on at once: decoded and checked, one takes many times its length.
	maxWork = 16 << 20
	// userShare is the part of it that one user may have under way.
	userShare = 4
	// WorkPatience is how long a body waits for its turn.
	WorkPatience = 10 * time.Second
	// maxRead is how many bytes of bodies are read and waiting at most. It takes dozens of users who each send all they may
	// and then stop to come near it.
	maxRead = 192 << 20

	// lingerBytes and lingerTime are how much a client that was refused may still send, and for how long: who is cut off while
	// it writes may never read the answer.
	lingerBytes = 32 << 20
	lingerTime  = 5 * time.Second
)

// Bodies reads the bodies of requests. What one user has under way is bounded from when it is announced. What all have is
// bounded only once it is read: who sends slowly holds up nobody but themselves.
type Bodies struct {
	largest int64
	work    *semaphore.Weighted
	read    atomic.Int64

	mu    sync.Mutex
	share int64
	users map[string]int64
}

// NewBodies reads bodies up to a length.
func NewBodies(largest int64) *Bodies {
	most := max(maxWork, userShare*largest)
	return &Bodies{largest: largest, work: semaphore.NewWeighted(most), share: most / userShare, users: map[string]int64{}}
}

// Read a body of a user. It is JSON whatever its declared type: a form on another site could declare another, but not
// send the key. Done must be called when the work on it is done, unless there is an error.
func (b *Bodies) Read(r *http.Request, user string) (body []byte, done func(), err error) {
	announced := r.ContentLength
	switch {
	case announced > b.largest:
		return nil, nil, answer.TooLarge
	case announced < 0:
		announced = b.largest
	}
	if !b.add(user, announced) {
		return nil, nil, tooFast(time.Second)
	}
	defer func() {
		if err != nil {
			b.add(user, -announced)
		}
	}()
	// Who waited to be told to go on sending is told so now.
	r.Header.Del("Expect")
	counted := &countedReader{Reader: http.MaxBytesReader(nil, r.Body, b.largest), all: &b.read}
	defer counted.forget()
	body, err = io.ReadAll(counted)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, nil, answer.TooLarge
	case errors.Is(err, errTooMuch):
		return nil, nil, overloaded
	case err != nil:
		return nil, nil, answer.Refuse(http.StatusBadRequest, "The body could not be read")
	}
	waiting, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), WorkPatience)
	defer cancel()
	size := int64(len(body))
	if b.work.Acquire(waiting, size) != nil {
		return nil, nil, overloaded
	}
	return body, func() {
		b.work.Release(size)
		b.add(user, -announced)
	}, nil
}

// add to what a user has under way, unless it becomes more than their share.
func (b *Bodies) add(user string, size int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if size > 0 && b.users[user]+size > b.share {
		return false
	}
	if b.users[user] += size; b.users[user] == 0 {
		delete(b.users, user)
	}
	return true
}

var (
	overloaded = answer.Later(http.StatusServiceUnavailable, "Too many requests are under way; try again", time.Second)
	errTooMuch = errors.New("too much is being read")
)

// countedReader counts what was really sent: a body that is only announced takes no memory.
type countedReader struct {
	io.Reader
	all  *atomic.Int64
	mine int64
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.mine += int64(n)
	if c.all.Add(int64(n)) > maxRead {
		return n, errTooMuch
	}
	return n, err
}

func (c *countedReader) forget() { c.all.Add(-c.mine) }

// TurnAway a client before its body is read to the end: answer, and then read on for a bounded amount and time, so that it
// gets to read the answer. Many clients do not until they have sent everything.
func TurnAway(w http.ResponseWriter, r *http.Request, err error) {
	connection := http.NewResponseController(w)
	// What a connection cannot do it says here, and is closed without delay then.
	_ = connection.EnableFullDuplex()
	w.Header().Set("Connection", "close")
	answer.Write(w, nil, err)
	// Who waits to be told to go on sending has not sent anything.
	if r.Body == nil || r.Header.Get("Expect") != "" || connection.Flush() != nil || connection.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
}
