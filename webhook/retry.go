package webhook

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is a second and a half in all: the API server waits five for an answer.
var patience = wait.Backoff{Steps: 6, Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.1}

// patiently tries again for a moment what failed on the way to an answer: a connection that broke,
// an API server under load, a cache that is about to fill. Else that moment costs a user a write.
func patiently(ctx context.Context, try func() error) error {
	return retry.OnError(patience, func(err error) bool { return ctx.Err() == nil && mayPass(err) }, try)
}

// mayPass: the error is no answer, or one that says to try again.
func mayPass(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable:
		return true
	default:
		return false
	}
}

// patient reads patiently.
type patient struct{ client.Reader }

func (p patient) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	return patiently(ctx, func() error { return p.Reader.Get(ctx, key, o, options...) })
}
