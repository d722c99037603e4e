package access

import (
	"net/http"
	"sync"
	"time"

	"github.com/parley-dev/parley/cmd/facade/answer"
)

// Streams bounds how many streams are open: for one user, so that a page that opens them without
// end holds up nobody else, and for all, since each takes memory.
type Streams struct {
	perUser, all int

	mu    sync.Mutex
	users map[string]int
	open  int
}

// NewStreams allows so many for each user, and for all together.
func NewStreams(perUser, all int) *Streams {
	return &Streams{perUser: perUser, all: all, users: map[string]int{}}
}

// Take one for a user, or refuse it. done must be called when it ends.
func (s *Streams) Take(user string) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.users[user] >= s.perUser:
		return nil, answer.Later(http.StatusTooManyRequests, "Too many streams are open; close some of them", 5*time.Second)
	case s.open >= s.all:
		return nil, answer.Later(http.StatusServiceUnavailable, "Too many streams are open; try again", 5*time.Second)
	}
	s.users[user]++
	s.open++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		if s.users[user]--; s.users[user] == 0 {
			delete(s.users, user)
		}
	}, nil
}
