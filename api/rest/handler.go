// Package rest is Parley's HTTP contract.
package rest

import (
	"context"
	"net/http"
	"time"
)

// readyTimeout bounds how long the API server may take to answer before the facade says it is not ready.
const readyTimeout = 2 * time.Second

// NewHandler serves the HTTP operations. reachable says whether the API server is.
func NewHandler(reachable func(context.Context) error) http.Handler {
	mux := http.NewServeMux()
	alive := func(w http.ResponseWriter, _ *http.Request) { writeStatus(w, http.StatusOK, "ok") }
	mux.HandleFunc("GET /alive", alive)
	mux.HandleFunc("GET /health", alive)
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if reachable(ctx) != nil {
			w.Header().Set("Retry-After", "1")
			writeStatus(w, http.StatusServiceUnavailable, "the API server does not answer")
			return
		}
		writeStatus(w, http.StatusOK, "ok")
	})
	return mux
}

func writeStatus(w http.ResponseWriter, code int, status string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(`{"status":"` + status + `"}` + "\n"))
}
