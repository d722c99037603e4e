package installed

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// TestNamespacedParleyWorksOnlyInTheListedNamespaces installs config/samples/namespaced without
// changes.
func TestNamespacedParleyWorksOnlyInTheListedNamespaces(t *testing.T) {
	for _, name := range []string{"team-a", "team-b", "team-c"} {
		namespace(t, name)
	}
	i := install(t, map[string]string{".": "resources: [CONFIG/samples/namespaced]"})

	t.Run("sessions start in the listed namespaces", func(t *testing.T) {
		for _, name := range []string{"team-a", "team-b"} {
			i.t = t
			ada := i.newPerson(name)
			ada.call(http.StatusOK, http.MethodPost, "/api/settings", `{"llm_model": "example/model", "llm_api_key": "k1"}`)
			ada.call(http.StatusOK, http.MethodPost, "/api/conversations", `{"conversation_id": "talk"}`)
			testenv.Await(t, func() error {
				return env.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: v1alpha1.SessionName("talk")},
					&corev1.Pod{})
			})
			if err := env.Client.Create(t.Context(), notAURL(name)); !apierrors.IsInvalid(err) {
				t.Errorf("the webhook was not called: %v", err)
			}
			expectStatusRefused(t, name)
		}
	})

	t.Run("a deleted signing key is recreated", func(t *testing.T) {
		key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "parley-system", Name: session.SigningSecret}}
		if err := env.Client.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		testenv.Await(t, func() error { return env.Client.Get(t.Context(), client.ObjectKeyFromObject(key), key) })
	})

	t.Run("other namespaces are ignored", func(t *testing.T) {
		// The API server does not call the webhook for objects in team-c, so it must accept these
		// settings.
		other := notAURL("team-c")
		create(t, other)
		for _, key := range []client.ObjectKey{client.ObjectKeyFromObject(other)} {
			found := &v1alpha1.UserSettings{}
			if err := env.Client.Get(t.Context(), key, found); err != nil || found.Status.SessionKeyHash != "" ||
				len(found.Status.Conditions) > 0 {
				t.Errorf("the object has the status %+v, %v", found.Status, err)
			}
		}
		// The policy about statuses must not apply to team-c, because another Parley could manage
		// this namespace.
		create(t, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "team-c", Name: "default"}})
		if err := writeStatus(t, "team-c"); err != nil {
			t.Error(err)
		}
	})

	t.Run("no request is forbidden", func(t *testing.T) {
		for _, process := range []string{"manager", "facade", "archive"} {
			for _, r := range testenv.Requests(t, auditDir, i.user(process)) {
				if r.Status.Code == http.StatusForbidden {
					t.Errorf("the %s was forbidden to %s %s in %q", process, r.Verb, r.Object.Resource, r.Object.Namespace)
				}
				if !slices.Contains([]string{"", "team-a", "team-b", "parley-system"}, r.Object.Namespace) {
					t.Errorf("the %s requested %s in %s", process, r.Object.Resource, r.Object.Namespace)
				}
			}
		}
	})

	t.Run("other namespaces grant no rights", func(t *testing.T) {
		for _, process := range []string{"manager", "facade", "archive"} {
			for _, namespace := range []string{"", "team-c", "kube-system"} {
				for _, resource := range []string{"secrets", "configmaps", "pods", "conversations.parley.dev",
					"usersettings.parley.dev"} {
					for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
						if hasRight(t, i.user(process), namespace, verb, resource) {
							t.Errorf("the %s may %s %s in %q", process, verb, resource, namespace)
						}
					}
				}
			}
		}
	})
}

func TestNamespacedModeHasFewClusterWideRights(t *testing.T) {
	var bound []string
	rules := map[string][]string{}
	for _, object := range kustomized(t, map[string]string{".": "resources: [CONFIG/samples/namespaced]"}) {
		switch object.GetKind() {
		case "ClusterRoleBinding":
			name, _, _ := unstructured.NestedString(object.Object, "roleRef", "name")
			bound = append(bound, name)
		case "ClusterRole":
			list, _, _ := unstructured.NestedSlice(object.Object, "rules")
			for _, rule := range list {
				resources, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resources")
				rules[object.GetName()] = append(rules[object.GetName()], resources...)
			}
		}
	}
	slices.Sort(bound)
	if !slices.Equal(bound, []string{"parley-facade-cluster", "parley-manager-cluster"}) {
		t.Fatalf("the ClusterRoleBindings are %v", bound)
	}
	if got := rules["parley-facade-cluster"]; !slices.Equal(got, []string{"tokenreviews", "sessionclasses"}) {
		t.Errorf("the cluster-wide rights of the facade cover %v", got)
	}
	got := rules["parley-manager-cluster"]
	slices.Sort(got)
	if want := []string{"sessionclasses", "sessionclasses/status", "storageclasses", "subjectaccessreviews",
		"tokenreviews", "validatingwebhookconfigurations"}; !slices.Equal(slices.Compact(got), want) {
		t.Errorf("the cluster-wide rights cover %v, want %v", got, want)
	}
}

// notAURL returns invalid UserSettings that only the webhook refuses.
func notAURL(namespace string) *v1alpha1.UserSettings {
	url := "not a url"
	return &v1alpha1.UserSettings{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "odd"},
		Spec:       v1alpha1.UserSettingsSpec{LLMBaseURL: &url},
	}
}

func hasRight(t *testing.T, user, namespace, verb, resource string) bool {
	t.Helper()
	resource, group, _ := strings.Cut(resource, ".")
	resource, subresource, _ := strings.Cut(resource, "/")
	account := strings.Split(user, ":")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + account[2],
			"system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: group,
			Resource: resource, Subresource: subresource},
	}}
	create(t, review)
	if review.Status.EvaluationError != "" {
		t.Fatal(fmt.Errorf("review: %s", review.Status.EvaluationError))
	}
	return review.Status.Allowed
}
