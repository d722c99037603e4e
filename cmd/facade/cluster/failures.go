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
	"k8s.io/apimachinery/pkg/util/validation/field"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// tooLarge refuses a request whose object is too large for the API server or etcd. Their limits are
// lower than the facade's limit on bodies.
var tooLarge = answer.Refuse(http.StatusRequestEntityTooLarge, "The request is too large for one Kubernetes "+
	"object: shorten its texts and lists")

// Refusal translates an API server's error for a client.
func Refusal(ctx context.Context, err error, names rest.EntryNames) *answer.Refusal {
	switch {
	case apierrors.IsInvalid(err):
		if limit := conversationLimit(err); limit != "" {
			return answer.Refuse(http.StatusForbidden, limit)
		}
		if details := details(CausesOf(err), names); len(details) > 0 {
			return answer.Invalid(details...)
		}
	case apierrors.IsRequestEntityTooLargeError(err) || tooLargeForEtcd(err):
		return tooLarge
	case IsForbidden(err):
		logf.FromContext(ctx).Info("The API server refused a request", "reason", Reason(err))
		return answer.Forbidden
	}
	// The HTTP client cannot fix this error, which may be transient. The text of the error may
	// contain data of the request, so only the reason is logged.
	logf.FromContext(ctx).Info("A request to the API server failed", "reason", Reason(err))
	return answer.Unavailable
}

// conversationLimit returns the message of Parley's webhook for a user with too many conversations.
func conversationLimit(err error) string {
	for _, cause := range CausesOf(err, metav1.CauseType(field.ErrorTypeTooMany)) {
		if cause.Field == "spec.userSettingsName" {
			_, message := splitCause(cause.Message)
			return message
		}
	}
	return ""
}

// tooLargeForEtcd matches etcd's error, which the API server returns with status 500.
func tooLargeForEtcd(err error) bool {
	return err != nil && strings.Contains(err.Error(), "etcdserver: request is too large")
}

// clusterFault matches the message of a refusal that the request did not cause. Only the message
// distinguishes such a refusal from a policy's refusal.
var clusterFault = regexp.MustCompile(`User "[^"]*" cannot |not yet ready to handle request`)

// IsForbidden reports whether a quota or policy refuses a request. It is false if the facade lacks
// a permission, or if the API server has just started and forbids everything: clusterFault matches
// the messages of these errors. It is also false if the API server forbids discovery. The client
// drops the message of this error, but IsUnexpectedServerError recognizes it.
func IsForbidden(err error) bool {
	return apierrors.IsForbidden(err) && !apierrors.IsUnexpectedServerError(err) && !clusterFault.MatchString(err.Error())
}

// IsRejected reports whether the API server received and rejected the request. After any other
// error the request may have been executed.
func IsRejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500
}

// Reason returns the kind of an error without its text.
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

// CausesOf returns the causes of an API server's error: all causes, or only those of the given
// kinds.
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

// SecretConflicts returns an error for each reference to an existing Secret that Parley did not
// create for the user's keys. Parley's webhook refuses such references.
func SecretConflicts(err error, names rest.EntryNames) []rest.Detail {
	var details []rest.Detail
	for _, cause := range CausesOf(err, metav1.CauseTypeForbidden) {
		if !strings.HasSuffix(cause.Field, "Ref") {
			continue
		}
		msg := "A Secret with this name exists and is not a user's key: delete this Secret, or recreate it with another name"
		if name := secretName.FindStringSubmatch(cause.Message); name != nil {
			msg = "The Secret " + name[1] + " exists and is not a user's key: delete this Secret, or recreate it with " +
				"another name"
		}
		details = append(details, rest.Detail{Type: "secret_conflict", Loc: rest.LocationOf(cause.Field, names), Msg: msg})
	}
	return details
}
