package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/cmd/archive/store"
)

// refusal is an error that the client is told.
type refusal struct {
	code       int
	detail     string
	retryAfter time.Duration
}

func (r *refusal) Error() string { return r.detail }

func (r *refusal) write(w http.ResponseWriter) {
	if r.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(r.retryAfter/time.Second)))
	}
	writeJSON(w, r.code, map[string]string{"detail": r.detail})
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Del("Content-Length") // of what could not be sent
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client is gone
}

var (
	errNotFound     = &refusal{code: http.StatusNotFound, detail: "Not Found"}
	errUnauthorized = &refusal{code: http.StatusUnauthorized, detail: "Unauthorized"}
	// errGone answers for a Conversation that was deleted: nothing more is kept of it.
	errGone         = &refusal{code: http.StatusGone, detail: "There is no such conversation"}
	errNumber       = &refusal{code: http.StatusUnprocessableEntity, detail: "An event or a journal is named by a number"}
	errUnreadable   = &refusal{code: http.StatusBadRequest, detail: "The body could not be read"}
	errBodyTooLarge = &refusal{code: http.StatusRequestEntityTooLarge, detail: "Request body too large: at most " +
		strconv.Itoa(maxBody) + " bytes"}
	errTooMany = &refusal{http.StatusTooManyRequests, "Too many requests in flight for this user; retry later",
		time.Second}
	errOverloaded  = &refusal{http.StatusServiceUnavailable, "Too many requests in flight; retry later", time.Second}
	errUnavailable = &refusal{http.StatusServiceUnavailable,
		"The Kubernetes API server or the signing key is not available; retry later", time.Second}
	errFailed = &refusal{http.StatusServiceUnavailable, "The archive failed; retry later", time.Second}
)

// refuse turns an error into what the client is told. What is not kept is counted.
func refuse(c call, err error) *refusal {
	told := errFailed
	switch {
	case errors.As(err, &told):
	case errors.Is(err, store.ErrNothing):
		told = errNotFound
	case errors.Is(err, store.ErrMalformed), errors.Is(err, store.ErrNoEnding):
		told = &refusal{code: http.StatusUnprocessableEntity, detail: err.Error()}
	case errors.Is(err, store.ErrOtherJournal):
		told = &refusal{code: http.StatusConflict, detail: err.Error()}
	case errors.Is(err, store.ErrSuperseded):
		told = &refusal{code: http.StatusForbidden, detail: err.Error()}
	case errors.Is(err, store.ErrFull), errors.Is(err, store.ErrOwnerFull):
		told = &refusal{code: http.StatusRequestEntityTooLarge, detail: err.Error()}
	default:
		logf.FromContext(c.Context()).WithName("archive").Error(err, "The archive failed", "uid", c.uid)
		if c.Method == http.MethodPost {
			notKept.WithLabelValues("failed").Inc()
		}
	}
	if told.code == http.StatusRequestEntityTooLarge {
		notKept.WithLabelValues("full").Inc()
	}
	return told
}
