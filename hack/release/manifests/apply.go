package manifests

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/local/cluster"
)

const retryInterval = 200 * time.Millisecond

// Apply applies objects: first the CRDs, then the namespaces, then all other objects.
func Apply(ctx context.Context, c client.Client, owner string, objects []*unstructured.Unstructured) error {
	objects = slices.Clone(objects)
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	for _, object := range objects {
		if err := apply(ctx, c, owner, object); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

func rank(object *unstructured.Unstructured) int {
	switch object.GetKind() {
	case "CustomResourceDefinition":
		return 0
	case "Namespace":
		return 1
	}
	return 2
}

func apply(ctx context.Context, c client.Client, owner string, object *unstructured.Unstructured) error {
	err := Persist(ctx, func(ctx context.Context) error {
		// Apply writes the response into its argument, so each attempt needs a copy.
		attempt := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
		return c.Apply(ctx, attempt, client.ForceOwnership, client.FieldOwner(owner))
	})
	if err != nil || object.GetKind() != "CustomResourceDefinition" {
		return err
	}
	return cluster.Retry(ctx, retryInterval, func(ctx context.Context) error { return established(ctx, c, object) })
}

func established(ctx context.Context, c client.Client, crd *unstructured.Unstructured) error {
	current := crd.DeepCopy()
	if err := c.Get(ctx, client.ObjectKeyFromObject(crd), current); err != nil {
		return err
	}
	conditions, _, err := unstructured.NestedSlice(current.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, entry := range conditions {
		condition, _ := entry.(map[string]any)
		if condition["type"] == "Established" && condition["status"] == "True" {
			return nil
		}
	}
	return errors.New("not established")
}

// Persist retries a call after transient errors, until it succeeds or the API server rejects it. An
// error is transient if, for example, a new kind or a webhook is not served yet.
func Persist(ctx context.Context, call func(context.Context) error) error {
	var rejected error
	err := cluster.Retry(ctx, retryInterval, func(ctx context.Context) error {
		err := call(ctx)
		if isRejection(err) {
			rejected = err
			return nil
		}
		return err
	})
	return errors.Join(rejected, err)
}

func isRejection(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// IssueToken issues a token of the workload's ServiceAccount.
func (w Workload) IssueToken(ctx context.Context, c client.Client, lifetime time.Duration) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.ServiceAccount}}
	seconds := int64(lifetime.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := c.SubResource("token").Create(ctx, account, request); err != nil {
		return "", err
	}
	return request.Status.Token, nil
}
