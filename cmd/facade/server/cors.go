package server

import (
	"net/http"
	"slices"
	"strings"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
)

// cors lets pages of the configured origins call the API. Browsers do not send the facade's cookie
// with these calls, so the calls need a session key or a token.
func (s *server) cors(next http.Handler) http.Handler {
	if len(s.options.CORSOrigins) == 0 {
		return next
	}
	anyOrigin := slices.Contains(s.options.CORSOrigins, "*")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		w.Header().Add("Vary", "Origin")
		if origin == "" || !anyOrigin && !slices.Contains(s.options.CORSOrigins, origin) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Expose-Headers", strings.Join([]string{"Retry-After", requestIDHeader}, ", "))
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			w.Header().Set("Access-Control-Allow-Methods", "DELETE, GET, PATCH, POST, PUT")
			w.Header().Set("Access-Control-Allow-Headers", strings.Join([]string{"Authorization", "Content-Type",
				session.IdempotencyHeader, "Last-Event-ID", rest.KeyHeader, rest.SettingsHeader, requestIDHeader}, ", "))
			w.Header().Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}
