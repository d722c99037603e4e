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

// retryBackoff takes 1.5 seconds in total; the API server's timeout is five seconds.
var retryBackoff = wait.Backoff{Steps: 6, Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.1}

// retryTransient retries briefly after a broken connection, an overloaded API server or an empty
// cache, so that users' writes do not fail.
func retryTransient(ctx context.Context, try func() error) error {
	return retry.OnError(retryBackoff, func(err error) bool { return ctx.Err() == nil && isTransient(err) }, try)
}

// isTransient reports whether the API server sent no response, or a response that asks for a retry.
func isTransient(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable:
		return true
	default:
		return false
	}
}

type retryingReader struct{ client.Reader }

func (r retryingReader) Get(ctx context.Context, key client.ObjectKey, o client.Object,
	options ...client.GetOption) error {
	return retryTransient(ctx, func() error { return r.Reader.Get(ctx, key, o, options...) })
}
