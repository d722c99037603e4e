package main

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// Only the API server's English text distinguishes a policy's refusal from a missing permission. If
// a new Kubernetes version changes that text, this test fails.
func TestMissingPermissionsAreNotReportedAsPolicyRefusals(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	facade, err := client.New(suite.AsFacade, client.Options{Scheme: suite.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("a missing permission", func(t *testing.T) {
		for _, err := range []error{
			facade.List(t.Context(), &corev1.PodList{}, client.InNamespace(ada.namespace)),
			facade.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "p"}}),
			facade.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "s"}}),
		} {
			if !apierrors.IsForbidden(err) || cluster.IsForbidden(err) {
				t.Errorf("counts as a policy's refusal: %v", err)
			}
		}
	})
	t.Run("a policy", func(t *testing.T) {
		err := facade.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "s"}})
		if !cluster.IsForbidden(err) {
			t.Errorf("counts as a missing permission: %v", err)
		}
	})
	t.Run("a quota", func(t *testing.T) {
		none := corev1.ResourceList{"count/conversations.parley.dev": resource.MustParse("0")}
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "none"},
			Spec: corev1.ResourceQuotaSpec{Hard: none}}
		create(t, quota)
		// No quota controller runs here, so the test sets the status.
		quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
		if err := suite.Client.Status().Update(t.Context(), quota); err != nil {
			t.Fatal(err)
		}
		await(t, func() error { return codeOf(ada.post(t, "/api/conversations", `{}`), 403) })
	})
}

func TestConversationsWithTooMuchTextAreRefused(t *testing.T) {
	t.Parallel()
	// Every string has the schema's maximum length, counted in characters.
	text, image := strings.Repeat("\U0001F600", 131072), "https://example.com/"+strings.Repeat("x", 16384-20)
	request := jsonOf(t, rest.ConversationRequest{
		InitialUserMsg: &text, ConversationInstructions: &text, ImageURLs: slices.Repeat([]rest.Image{{URL: image}}, 16),
	})
	ada := newcomer(t)
	// A slow API server may return other errors at first.
	await(t, func() error { return codeOf(ada.post(t, "/api/conversations", request), 413) })
	ada.post(t, "/api/conversations", request).wants(t, 413).says(t, `{"detail": "The request is too large for `+
		`one Kubernetes object: shorten its texts and lists"}`)
}
