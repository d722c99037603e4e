package manifests

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestARejectedWriteIsNotRetried(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "UserSettings"}, "default", nil)
	calls := 0
	err := Persist(t.Context(), func(context.Context) error { calls++; return invalid })
	if !errors.Is(err, invalid) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

func TestTransientErrorsAreRetried(t *testing.T) {
	errs := []error{
		errors.New("connection refused"),
		apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default"),
		apierrors.NewInternalError(errors.New("failed calling webhook")),
		nil,
	}
	calls := 0
	err := Persist(t.Context(), func(context.Context) error { calls++; return errs[calls-1] })
	if err != nil || calls != len(errs) {
		t.Errorf("%d calls, %v", calls, err)
	}
}
