package githost

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"

	"github.com/parley-dev/parley/cmd/runtime/reply"
)

// Serve serves the host's responses to the facade. h is nil if the session has no token.
func Serve(h *Host, ask func(ctx context.Context, h *Host, r *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var answer any
		err := ErrNoToken
		if h != nil {
			answer, err = ask(r.Context(), h, r)
		}
		switch {
		case err == nil:
			reply.JSON(w, http.StatusOK, answer)
		case errors.Is(err, ErrQuestion):
			reply.Refuse(w, http.StatusUnprocessableEntity, err.Error())
		case errors.Is(err, ErrNoToken), errors.Is(err, ErrToken):
			reply.Refuse(w, http.StatusFailedDependency, err.Error())
		case errors.Is(err, ErrRate):
			reply.Refuse(w, http.StatusTooManyRequests, err.Error())
		default:
			reply.Refuse(w, http.StatusBadGateway, err.Error())
		}
	}
}

// AskUser returns the owner of the token.
func AskUser(ctx context.Context, h *Host, _ *http.Request) (any, error) { return h.User(ctx) }

// AskRepositories returns a page of repositories. The request has the query parameters query, page
// and per_page.
func AskRepositories(ctx context.Context, h *Host, r *http.Request) (any, error) {
	query := r.URL.Query()
	page, err := number(query, "page", 1, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	size, err := number(query, "per_page", perPage, maxPageSize)
	if err != nil {
		return nil, err
	}
	return h.Repositories(ctx, query.Get("query"), page, size)
}

// number parses a query parameter. The argument usual is the default.
func number(query url.Values, name string, usual, largest int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > largest {
		return 0, fmt.Errorf("%w: %s: must be a number from 1 to %d", ErrQuestion, name, largest)
	}
	return n, nil
}

// AskBranches returns the branches of a repository. The query parameter "repository" is its name.
func AskBranches(ctx context.Context, h *Host, r *http.Request) (any, error) {
	return h.Branches(ctx, r.URL.Query().Get("repository"))
}
