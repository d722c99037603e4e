package webhook

import (
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func expectAccepted(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("should be accepted: %v", err)
	}
}

// expectRefused expects a refusal of exactly these fields.
func expectRefused(t *testing.T, err error, message string, fields ...string) {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) || status.Status().Details == nil {
		t.Fatalf("should be refused for %v, got: %v", fields, err)
	}
	if !strings.Contains(err.Error(), "admission webhook") || !strings.Contains(err.Error(), message) {
		t.Errorf("the message should contain %q, got: %v", message, err)
	}
	var refused []string
	for _, cause := range status.Status().Details.Causes {
		refused = append(refused, cause.Field)
	}
	slices.Sort(refused)
	slices.Sort(fields)
	if !slices.Equal(refused, fields) {
		t.Errorf("should be refused for %v, got %v: %v", fields, refused, err)
	}
}

func expectWarnings(t *testing.T, p *actor, warnings ...string) {
	t.Helper()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	got := slices.Sorted(slices.Values(p.warnings))
	slices.Sort(warnings)
	if !slices.Equal(got, warnings) {
		t.Errorf("want the warnings %q, got %q", warnings, got)
	}
}
