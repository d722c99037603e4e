package installed

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// renamed is an overlay that installs config/default in another namespace and under other names.
var renamed = map[string]string{
	".": "resources: [CONFIG/default]\nnamespace: elsewhere\nnamePrefix: x-\nnameSuffix: -y",
}

func TestParleyWorksIfItsObjectsAreRenamedAndItsFacadeStaysRestricted(t *testing.T) {
	i := install(t, renamed)
	if i.user("facade") != "system:serviceaccount:elsewhere:x-parley-facade-y" {
		t.Fatalf("the facade's account is %s", i.user("facade"))
	}
	facade, err := client.New(i.config("facade"), client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	// A new policy takes effect with a delay.
	testenv.Await(t, func() error {
		err := facade.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
			GenerateName: "own-"}})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "parley.dev/user-key only") {
			return fmt.Errorf("the policy did not reject the Secret: %w", err)
		}
		return nil
	})
	ada := i.newPerson(namespace(t, "renamed"))
	// The policy must let only the renamed manager write statuses. newPerson has shown that the
	// renamed manager can write them.
	expectStatusRefused(t, ada.namespace)
	// The facade stores the API key in a managed Secret. The UserSettings refer to this Secret. The
	// webhook accepts this reference only from Parley, or from a user who may read the Secret. The
	// facade may not read Secrets, so the webhook must recognize the facade by its new name.
	ada.call(http.StatusOK, http.MethodPost, "/api/settings", `{"llm_model": "example/model", "llm_api_key": "k1", `+
		`"agent": "CodeActAgent"}`)
	ada.call(http.StatusOK, http.MethodPost, "/api/conversations", `{"conversation_id": "talk"}`)
	testenv.Await(t, func() error {
		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: v1alpha1.SessionName("talk")},
			&corev1.Pod{})
	})
}

// expectStatusRefused checks that even an administrator cannot write a status.
func expectStatusRefused(t *testing.T, namespace string) {
	t.Helper()
	testenv.Await(t, func() error {
		if err := writeStatus(t, namespace); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(),
			"only Parley's manager") {
			return fmt.Errorf("the policy did not reject the status: %w", err)
		}
		return nil
	})
}

func writeStatus(t *testing.T, namespace string) error {
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	return env.Client.Status().Patch(t.Context(), settings, client.RawPatch(types.MergePatchType,
		[]byte(`{"status": {"observedGeneration": 7}}`)))
}
