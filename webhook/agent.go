package webhook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// checkAgent refuses an agent that the catalogue does not have, and names those that it has.
func (v *userSettingsValidator) checkAgent(ctx context.Context, agent string, found *findings) error {
	path := field.NewPath("spec", "agent")
	catalogue := &corev1.ConfigMap{}
	err := v.guard.reader.Get(ctx, client.ObjectKey{Namespace: v.namespace, Name: v.agents}, catalogue)
	if apierrors.IsNotFound(err) {
		found.warn(path, "cannot be checked: there is no agent catalogue yet")
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the agent catalogue: %w", err)
	}
	if _, known := catalogue.Data[agent]; !known {
		names := strings.Join(slices.Sorted(maps.Keys(catalogue.Data)), ", ")
		found.errs = append(found.errs, field.Invalid(path, field.OmitValueType{}, "no agent of that name is in the "+
			"catalogue, which has: "+names))
	}
	return nil
}
