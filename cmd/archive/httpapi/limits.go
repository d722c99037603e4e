package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parley-dev/parley/api/session"
)

const (
	// maxBody bounds one body, and what one owner's sessions may send at once.
	maxBody = session.MaxArchived
	// maxRead bounds the bytes of bodies that are read or wait, maxWork those that are worked on.
	maxRead, maxWork = 192 << 20, 4 * maxBody
	// workTimeout is how long a body waits for its turn.
	workTimeout = 10 * time.Second
	// conversationReads, ownerReads and allReads bound how many responses are sent at once. Each takes
	// little memory, however long it takes.
	conversationReads, ownerReads, allReads = 32, 128, 2048
	// lingerBytes and lingerTime bound what a refused client may still send: one that is cut off while
	// it writes may never read the answer.
	lingerBytes, lingerTime = 32 << 20, 5 * time.Second
)

// inFlight counts what is in flight, by key and in all.
type inFlight struct {
	// perKey and total are limits; zero is none.
	perKey, total int64

	mu   sync.Mutex
	keys map[string]int64
	all  int64
}

// take refuses what is over a limit. Otherwise release must be called.
func (f *inFlight) take(key string, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.perKey > 0 && f.keys[key]+n > f.perKey:
		return errTooMany
	case f.total > 0 && f.all+n > f.total:
		return errOverloaded
	}
	if f.keys == nil {
		f.keys = map[string]int64{}
	}
	f.keys[key] += n
	f.all += n
	return nil
}

func (f *inFlight) release(key string, n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all -= n
	if f.keys[key] -= n; f.keys[key] == 0 {
		delete(f.keys, key)
	}
}

// limits of what sessions send and read.
type limits struct {
	announced, read         inFlight
	work                    *semaphore.Weighted
	ofConversation, ofOwner inFlight
}

func newLimits() *limits {
	return &limits{
		announced: inFlight{perKey: maxBody}, read: inFlight{total: maxRead}, work: semaphore.NewWeighted(maxWork),
		ofConversation: inFlight{perKey: conversationReads}, ofOwner: inFlight{perKey: ownerReads, total: allReads},
	}
}

// readBody reads the body of an owner's session. What it announces counts for the owner at once, and
// for all only as it arrives: a slow sender holds up nobody else. done must be called when the work
// on the body is done, unless there is an error.
func (l *limits) readBody(r *http.Request, owner string) (body []byte, done func(), err error) {
	announced := r.ContentLength
	switch {
	case announced > maxBody:
		return nil, nil, errBodyTooLarge
	case announced < 0:
		announced = maxBody
	}
	if err := l.announced.take(owner, announced); err != nil {
		return nil, nil, err
	}
	held := &counted{from: http.MaxBytesReader(nil, r.Body, maxBody), in: &l.read}
	defer func() {
		if err != nil {
			held.release()
			l.announced.release(owner, announced)
		}
	}()
	r.Header.Del("Expect") // reading tells a client that waits to go on
	body, err = io.ReadAll(held)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, nil, errBodyTooLarge
	case errors.Is(err, errOverloaded):
		return nil, nil, err
	case err != nil:
		return nil, nil, errUnreadable
	}
	waiting, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), workTimeout)
	defer cancel()
	size := int64(len(body))
	if l.work.Acquire(waiting, size) != nil {
		return nil, nil, errOverloaded
	}
	return body, func() {
		l.work.Release(size)
		held.release()
		l.announced.release(owner, announced)
	}, nil
}

// counted counts what is read.
type counted struct {
	from io.Reader
	in   *inFlight
	size int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if over := c.in.take("", int64(n)); over != nil {
		return 0, over
	}
	c.size += int64(n)
	return n, err
}

func (c *counted) release() { c.in.release("", c.size) }

// takeRead counts a response. done must be called when it is sent.
func (l *limits) takeRead(owner, uid string) (done func(), err error) {
	if err := l.ofOwner.take(owner, 1); err != nil {
		return nil, err
	}
	if err := l.ofConversation.take(uid, 1); err != nil {
		l.ofOwner.release(owner, 1)
		return nil, err
	}
	return func() {
		l.ofConversation.release(uid, 1)
		l.ofOwner.release(owner, 1)
	}, nil
}

// turnAway answers before the body is read, and then reads on for a while: many clients read no answer
// until they have sent everything.
func turnAway(w http.ResponseWriter, r *http.Request, err *refusal) {
	connection := http.NewResponseController(w)
	_ = connection.EnableFullDuplex() // a connection that cannot is closed without delay
	w.Header().Set("Connection", "close")
	err.write(w)
	// A client that waits to be told to go on has sent nothing.
	if r.Body == nil || r.Header.Get("Expect") != "" || connection.Flush() != nil ||
		connection.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
}
