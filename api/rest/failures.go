package rest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// answer is what a request gets.
type answer struct {
	code       int
	body       any
	retryAfter time.Duration
}

func ok(body any) answer { return answer{code: http.StatusOK, body: body} }

// refusal is an answer with a reason: a sentence, or a list of details.
func refusal(code int, detail any) answer {
	return answer{code: code, body: map[string]any{"detail": detail}}
}

func invalidRequest(details []Detail) answer {
	details = details[:min(len(details), maxDetails)]
	return refusal(http.StatusUnprocessableEntity, details)
}

var (
	unauthorized    = refusal(http.StatusUnauthorized, "Unauthorized")
	notFound        = refusal(http.StatusNotFound, "Not Found")
	noConversation  = refusal(http.StatusNotFound, "Conversation not found")
	tooLargeBody    = refusal(http.StatusRequestEntityTooLarge, "Request body too large")
	idTaken         = refusal(http.StatusConflict, "A conversation with this id exists that does not equal the one asked for")
	refusedByPolicy = refusal(http.StatusForbidden, "The cluster refuses this: a quota or a policy stands against it")
	broken          = refusal(http.StatusInternalServerError, "Internal Server Error")
)

func unavailable() answer {
	a := refusal(http.StatusServiceUnavailable, "The Kubernetes API server does not answer; try again")
	a.retryAfter = time.Second
	return a
}

func overloaded() answer {
	a := refusal(http.StatusServiceUnavailable, "Too many requests are under way; try again")
	a.retryAfter = time.Second
	return a
}

func tooFast(wait time.Duration) answer {
	a := refusal(http.StatusTooManyRequests, "Too many requests")
	a.retryAfter = wait
	return a
}

// complaint is an answer of the existing service that names its reason with an id.
func complaint(msgID, message string) answer {
	return answer{code: http.StatusBadRequest, body: map[string]string{"status": "error", "message": message, "msg_id": msgID}}
}

func (a answer) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if a.retryAfter > 0 {
		seconds := int((a.retryAfter + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	w.WriteHeader(a.code)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(a.body) // the client is gone; nobody is left to tell
}

// failed turns an error of the API server into an answer.
func failed(ctx context.Context, err error, names listNames) answer {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil:
		if details := invalidDetails(status.Status().Details.Causes, names); len(details) > 0 {
			return invalidRequest(details)
		}
	case apierrors.IsRequestEntityTooLargeError(err) || err != nil && strings.Contains(err.Error(), "etcdserver: request is too large"):
		return tooLargeBody
	case forbidden(err):
		logf.FromContext(ctx).Info("The API server forbids a request", "reason", reasonOf(err))
		return refusedByPolicy
	}
	// Whatever else it is, no client can help it, and it may pass. The text of the error may hold what was
	// sent, so only its kind is logged.
	logf.FromContext(ctx).Info("The API server could not be asked", "reason", reasonOf(err))
	return unavailable()
}

// forbidden says that a quota or policy refuses a request. An API server that has just started forbids everything for a moment,
// until it has read its roles and policies; that, and a missing right of the facade's own, is no answer for a client.
func forbidden(err error) bool {
	return apierrors.IsForbidden(err) && !ownFault.MatchString(err.Error())
}

var ownFault = regexp.MustCompile(`User "[^"]*" cannot |not yet ready to handle request`)

// reasonOf tells the kind of an error without its text.
func reasonOf(err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		return string(status.Status().Reason) + " " + strconv.Itoa(int(status.Status().Code))
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "connection"
}

// causesOf are the causes of a kind in an API server's error.
func causesOf(err error, kind metav1.CauseType) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var causes []metav1.StatusCause
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == kind {
			causes = append(causes, cause)
		}
	}
	return causes
}
