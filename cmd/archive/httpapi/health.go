package httpapi

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

const (
	// readyTimeout bounds a check whether the archive is ready.
	readyTimeout = 2 * time.Second
	// readyLasts is how long the result of a check counts: anybody may ask.
	readyLasts = time.Second
)

var errNotReady = answer.Later(http.StatusServiceUnavailable, "not ready", time.Second)

// Health serves /alive and /ready.
func Health(ready func(context.Context) error) http.Handler {
	var mu sync.Mutex
	var checked time.Time
	var problem error
	check := func() error {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(checked) > readyLasts {
			ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
			defer cancel()
			problem = ready(ctx)
			checked = time.Now()
		}
		return problem
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /alive", func(w http.ResponseWriter, _ *http.Request) {
		answer.Write(w, map[string]string{"status": "ok"}, nil)
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if check() != nil {
			answer.Write(w, nil, errNotReady)
			return
		}
		answer.Write(w, map[string]string{"status": "ok"}, nil)
	})
	return mux
}
