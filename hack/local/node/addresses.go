package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	"github.com/parley-dev/parley/api/session"
)

// addresses assigns each pod its own address in 127.0.0.0/8, so that all pods can listen on the
// same port.
type addresses struct {
	mu    sync.Mutex
	taken map[string]bool
}

// take chooses a free address at random, because another node may choose an address at the same
// time.
func (a *addresses) take() (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range 1000 {
		address := fmt.Sprintf("127.%d.%d.%d", 64+rand.IntN(64), rand.IntN(256), 1+rand.IntN(254))
		if a.taken[address] || !free(address) {
			continue
		}
		if a.taken == nil {
			a.taken = map[string]bool{}
		}
		a.taken[address] = true
		return address, nil
	}
	return "", errors.New("no free address on loopback")
}

func (a *addresses) give(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.taken, address)
}

func free(address string) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(session.Port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}
