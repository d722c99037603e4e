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
	// errGone answers for a Conversation that was deleted: nothing more is kept of it.
	errGone   = answer.Refuse(http.StatusGone, "There is no such conversation")
	errNumber = answer.Refuse(http.StatusUnprocessableEntity, "An event or a journal is named by a number")
	errFailed = answer.Later(http.StatusServiceUnavailable, "The archive failed; retry later", time.Second)
	notReady  = answer.Later(http.StatusServiceUnavailable, "not ready", time.Second)
)

// refusals are the codes of what the store refuses.
var refusals = map[error]int{
	store.ErrNothing:      http.StatusNotFound,
	store.ErrMalformed:    http.StatusUnprocessableEntity,
	store.ErrNoEnding:     http.StatusUnprocessableEntity,
	store.ErrOtherJournal: http.StatusConflict,
	store.ErrSuperseded:   http.StatusForbidden,
	store.ErrFull:         http.StatusRequestEntityTooLarge,
	store.ErrOwnerFull:    http.StatusRequestEntityTooLarge,
}

// refuse turns an error into what the client is told. What is not kept is counted.
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
