package githost

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
)

// Serve the answers of the host to the facade. h is nil where there is none to ask.
func Serve(h *Host, ask func(ctx context.Context, h *Host, r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var answer any
		err := ErrNoToken
		if h != nil {
			answer, err = ask(r.Context(), h, r)
		}
		code := http.StatusOK
		if err != nil {
			code = http.StatusBadGateway
			if errors.Is(err, ErrNoToken) || errors.Is(err, ErrToken) {
				code = http.StatusFailedDependency
			}
			answer = map[string]string{"detail": err.Error()}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// AskUser asks who the token is of.
func AskUser(ctx context.Context, h *Host, _ *http.Request) (any, error) { return h.User(ctx) }

// AskRepositories takes the words to search for, and which page.
func AskRepositories(ctx context.Context, h *Host, r *http.Request) (any, error) {
	query := r.URL.Query()
	page, _ := strconv.Atoi(query.Get("page"))
	size, _ := strconv.Atoi(query.Get("per_page"))
	return h.Repositories(ctx, query.Get("query"), page, size)
}

// AskBranches takes the repository.
func AskBranches(ctx context.Context, h *Host, r *http.Request) (any, error) {
	return h.Branches(ctx, r.URL.Query().Get("repository"))
}
