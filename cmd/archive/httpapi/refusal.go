package httpapi

import (
	"errors"
	"net/http"
	"time"

	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

var (
	// errGone is the response for a deleted Conversation, whose data is no longer stored.
	errGone   = answer.Refuse(http.StatusGone, "Unknown conversation")
	errNumber = answer.Refuse(http.StatusUnprocessableEntity, "The ID of an event or journal must be a number")
	errFailed = answer.Later(http.StatusServiceUnavailable, "The archive failed; retry later", time.Second)
	errNoTurn = errors.New("the body is not the outcome of a turn")
	notReady  = answer.Later(http.StatusServiceUnavailable, "not ready", time.Second)
)

var refusals = map[error]int{
	store.ErrNothing:       http.StatusNotFound,
	store.ErrMalformed:     http.StatusUnprocessableEntity,
	store.ErrNoEnding:      http.StatusUnprocessableEntity,
	errNoTurn:              http.StatusUnprocessableEntity,
	errNoModel:             http.StatusUnprocessableEntity,
	store.ErrNoReport:      http.StatusUnprocessableEntity,
	store.ErrNoQuery:       http.StatusUnprocessableEntity,
	store.ErrOtherJournal:  http.StatusConflict,
	store.ErrNoSnapshot:    http.StatusUnprocessableEntity,
	store.ErrOtherSnapshot: http.StatusConflict,
	store.ErrSuperseded:    http.StatusForbidden,
	store.ErrFull:          http.StatusRequestEntityTooLarge,
	store.ErrOwnerFull:     http.StatusRequestEntityTooLarge,
}

// refuse turns an error into a response and counts refused uploads.
func refuse(c call, err error) error {
	for refused, code := range refusals {
		if errors.Is(err, refused) {
			err = answer.Refuse(code, refused.Error())
		}
	}
	switch answer.CodeOf(err) {
	case http.StatusInternalServerError:
		logf.FromContext(c.Context()).WithName("archive").Error(err, "The archive failed", "uid", c.uid)
		if c.Method == http.MethodPost {
			notKept.WithLabelValues("failed").Inc()
		}
		return errFailed
	case http.StatusRequestEntityTooLarge:
		notKept.WithLabelValues("full").Inc()
	}
	return err
}
