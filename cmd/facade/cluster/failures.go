package cluster

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// tooLarge is about one object: the API server and etcd take less than a body may have.
var tooLarge = answer.Refuse(http.StatusRequestEntityTooLarge, "This is more than the cluster can store in one "+
	"object: shorten its texts and lists")

// Refusal says in a client's terms why the API server did not do what it was asked.
func Refusal(ctx context.Context, err error, names rest.EntryNames) *answer.Refusal {
	switch {
	case apierrors.IsInvalid(err):
		if details := details(CausesOf(err), names); len(details) > 0 {
			return answer.Invalid(details...)
		}
	case apierrors.IsRequestEntityTooLargeError(err) || tooLargeForEtcd(err):
		return tooLarge
	case IsForbidden(err):
		logf.FromContext(ctx).Info("The API server forbids a request", "reason", Reason(err))
		return answer.Forbidden
	}
	// Whatever else it is, no client can help it, and it may pass. The text of the error may hold
	// what was sent, so only its kind is logged.
	logf.FromContext(ctx).Info("The API server could not be asked", "reason", Reason(err))
	return answer.Unavailable
}

// tooLargeForEtcd: the API server passes this error on with a code of its own, 500.
func tooLargeForEtcd(err error) bool {
	return err != nil && strings.Contains(err.Error(), "etcdserver: request is too large")
}

// ownFault is how the API server words a refusal that says nothing of the request. Its code, reason
// and details are those of a policy's refusal.
var ownFault = regexp.MustCompile(`User "[^"]*" cannot |not yet ready to handle request`)

// IsForbidden says that a quota or policy refuses a request. An API server that has just started
// forbids everything for a moment, until it has read its roles and policies, also to ask which
// kinds there are, of which no words are left; that, and a missing right of the facade's own, is no
// answer for a client.
func IsForbidden(err error) bool {
	return apierrors.IsForbidden(err) && !apierrors.IsUnexpectedServerError(err) && !ownFault.MatchString(err.Error())
}

// IsDecided says that the API server answered, and did not do what it was asked. After any other
// error it may have.
func IsDecided(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500
}

// Reason tells the kind of an error without its text.
func Reason(err error) string {
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

// CausesOf are the causes in an API server's error; of these kinds, if any are named.
func CausesOf(err error, kinds ...metav1.CauseType) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var causes []metav1.StatusCause
	for _, cause := range status.Status().Details.Causes {
		if len(kinds) == 0 || slices.Contains(kinds, cause.Type) {
			causes = append(causes, cause)
		}
	}
	return causes
}

var secretName = regexp.MustCompile(`the Secret "([a-z0-9.-]+)"`)

// SecretsInTheWay are references that Parley's webhook refuses: a Secret has the name of the user's
// key and is none.
func SecretsInTheWay(err error, names rest.EntryNames) []rest.Detail {
	var details []rest.Detail
	for _, cause := range CausesOf(err, metav1.CauseTypeForbidden) {
		if !strings.HasSuffix(cause.Field, "Ref") {
			continue
		}
		msg := "A Secret that is not a user's key stands in the way"
		if name := secretName.FindStringSubmatch(cause.Message); name != nil {
			msg = "The Secret " + name[1] + " exists and is not a user's key: remove or rename it"
		}
		details = append(details, rest.Detail{Type: "secret_conflict", Loc: rest.LocationOf(cause.Field, names), Msg: msg})
	}
	return details
}
