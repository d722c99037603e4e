package rest

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// maxBodies is how many bytes of bodies the facade works on at once: decoded and checked, one takes many times its length.
	maxBodies = 16 << 20
	// userShare is the part of it that one user may have, so that nobody keeps the others out.
	userShare = 4
)

// bodies counts the bytes of the bodies under way, as they were announced, in all and for each user.
type bodies struct {
	most int64

	mu    sync.Mutex
	all   int64
	users map[string]int64
}

// newBodies has room for at least one body of the largest size for each of the users who may have a share.
func newBodies(largest int64) *bodies {
	return &bodies{most: max(maxBodies, userShare*largest), users: map[string]int64{}}
}

// take makes room for a body. There is none where refused is not nil; else free must be called.
func (b *bodies) take(user string, size int64) (free func(), refused *answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if size > 0 && b.users[user]+size > b.most/userShare {
		refused := tooFast(time.Second)
		return nil, &refused
	}
	if b.all+size > b.most {
		refused := overloaded()
		return nil, &refused
	}
	b.add(user, size)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.add(user, -size)
	}, nil
}

func (b *bodies) add(user string, size int64) {
	b.all += size
	if b.users[user] += size; b.users[user] == 0 {
		delete(b.users, user)
	}
}

// readBody reads a body, which is JSON whatever its declared type: a form on another site could declare another, but not send
// the key.
func (s *server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *answer) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.options.MaxBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &tooLargeBody
	case err != nil:
		refused := refusal(http.StatusBadRequest, "The body could not be read")
		return nil, &refused
	}
	return body, nil
}

// announced is how long a body can be.
func (s *server) announced(r *http.Request) int64 {
	if r.ContentLength < 0 {
		return s.options.MaxBodyBytes
	}
	return min(r.ContentLength, s.options.MaxBodyBytes)
}
