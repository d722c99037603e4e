package answer

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	readyTimeout = 2 * time.Second
	// readyLasts is the time for which the result of a check is cached.
	readyLasts = time.Second
)

// Alive answers a liveness probe.
func Alive(w http.ResponseWriter, _ *http.Request) { Write(w, map[string]string{"status": "ok"}, nil) }

// Health caches a check of the services that a program needs.
type Health struct {
	Check func(context.Context) error

	ready   atomic.Bool
	mu      sync.Mutex
	checked time.Time
	err     error
}

// Ready reports whether a check has ever succeeded. A later failure does not count. Otherwise, the
// failure of a shared service would make all replicas unready, although they can still serve some
// requests.
func (h *Health) Ready() bool {
	if !h.ready.Load() && h.Err() == nil {
		h.ready.Store(true)
	}
	return h.ready.Load()
}

// Err returns the error of the last check, or nil. It checks again if the last check is older than
// readyLasts.
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
