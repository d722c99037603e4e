package answer

import (
	"context"
	"net/http"
	"sync"
	"time"
)

const (
	// readyTimeout limits a readiness check.
	readyTimeout = 2 * time.Second
	// readyLasts is the time for which a result is cached, so that not every probe causes a check.
	readyLasts = time.Second
)

// Alive answers a liveness probe.
func Alive(w http.ResponseWriter, _ *http.Request) { Write(w, map[string]string{"status": "ok"}, nil) }

// Health caches a readiness check.
type Health struct {
	Check func(context.Context) error

	mu      sync.Mutex
	checked time.Time
	err     error
}

// Err returns the reason why the program is not ready, or nil.
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
