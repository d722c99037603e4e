package answer

import (
	"context"
	"net/http"
	"sync"
	"time"
)

const (
	// readyTimeout bounds a check whether a program is ready.
	readyTimeout = 2 * time.Second
	// readyLasts is how long the result of a check counts. Anybody may probe, and must not be able to
	// cause a check each time.
	readyLasts = time.Second
)

// Alive answers a probe that asks nothing else.
func Alive(w http.ResponseWriter, _ *http.Request) { Write(w, map[string]string{"status": "ok"}, nil) }

// Health caches a check whether a program is ready.
type Health struct {
	Check func(context.Context) error

	mu      sync.Mutex
	checked time.Time
	err     error
}

// Err is why the program is not ready.
func (h *Health) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.checked) > readyLasts {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		h.err = h.Check(ctx)
		h.checked = time.Now()
	}
	return h.err
}
