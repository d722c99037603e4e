package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

const (
	// readyTimeout bounds how long the API server may take to answer before the facade says it is
	// not ready.
	readyTimeout = 2 * time.Second
	// healthLasts is how long an answer of the API server counts. Anybody may ask whether the
	// facade is ready, and must not be able to make it ask for each of them.
	healthLasts = time.Second
)

func alive(w http.ResponseWriter, _ *http.Request) {
	answer.Write(w, map[string]string{"status": "ok"}, nil)
}

func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	problem := ""
	if s.serving.Err() != nil {
		problem = "stopping"
	} else if s.health.check(s.cluster.Ready) != nil {
		problem = "the API server does not answer, or the cache is not filled yet"
	}
	if problem != "" {
		answer.Write(w, nil, &answer.Refusal{Code: http.StatusServiceUnavailable, Body: map[string]string{"status": problem},
			RetryAfter: time.Second})
		return
	}
	alive(w, r)
}

// health is whether the API server answered when it was asked last.
type health struct {
	mu    sync.Mutex
	asked time.Time
	err   error
}

func (h *health) check(ask func(context.Context) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) > healthLasts {
		ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
		defer cancel()
		h.err = ask(ctx)
		h.asked = time.Now()
	}
	return h.err
}
