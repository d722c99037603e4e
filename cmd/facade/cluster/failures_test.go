package cluster

import (
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// A new client calls discovery before it reads an object. An API server that has just started
// forbids discovery. The error of discovery lacks the server's message. It contains only the status
// code, which is the same as for a policy's refusal.
func TestAnErrorOfAStartingAPIServerIsNotAPolicyRefusal(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,
			"message":"forbidden: User \"system:serviceaccount:parley-system:parley-facade\" cannot get path \"/api\"",
			"details":{}}`))
	}))
	defer server.Close()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	live, err := client.New(&rest.Config{Host: server.URL}, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	err = live.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "talk"}, &v1alpha1.Conversation{})
	if !apierrors.IsForbidden(err) || IsForbidden(err) {
		t.Errorf("%v counts as a policy's refusal", err)
	}
}

func TestTheErrorAboutTooManyConversationsContainsTheLimit(t *testing.T) {
	t.Parallel()
	const limit = "SessionClass default allows 2 Conversations per user (maxConversationsPerUser)"
	err := apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("Conversation").GroupKind(), "talk",
		field.ErrorList{{Type: field.ErrorTypeTooMany, Field: "spec.userSettingsName", BadValue: field.OmitValueType{},
			Detail: limit}})
	if got := Refusal(t.Context(), err, nil); got.Code != http.StatusForbidden || jsonOf(t, got.Body) !=
		`{"detail":"`+limit+`"}` {
		t.Errorf("%d %s", got.Code, jsonOf(t, got.Body))
	}
}
