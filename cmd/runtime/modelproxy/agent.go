package modelproxy

import (
	"errors"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
)

var errNoRoom = errors.New("too much is held of requests")

// incoming is the body of a request as the agent sends it. It waits for no room: while a body is
// not read to its end, nobody is told that its agent has gone.
type incoming struct {
	body     io.Reader
	control  *http.ResponseController
	patience time.Duration
	room     *semaphore.Weighted
	held     int64
}

func (i *incoming) Read(text []byte) (int, error) {
	// What has no deadlines is no connection.
	_ = i.control.SetReadDeadline(time.Now().Add(i.patience))
	n, err := i.body.Read(text)
	if !i.room.TryAcquire(int64(n)) {
		return 0, errNoRoom
	}
	i.held += int64(n)
	return n, err
}

// readAll of the body. After an error the deadline stays: the server reads on before it closes the
// connection, and must not wait there either.
func (i *incoming) readAll() ([]byte, error) {
	body, err := io.ReadAll(i)
	if err == nil {
		_ = i.control.SetReadDeadline(time.Time{})
	}
	return body, err
}

// release the room that the body takes.
func (i *incoming) release() { i.room.Release(i.held) }
