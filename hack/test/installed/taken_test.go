package installed

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// To create an object that refers to a Conversation or to UserSettings, a process also needs a
// right on the referenced object. The list checkedElsewhere contains these rights. The test removes
// each of them, and expects that the process can no longer create such an object.
func TestCreatingAnObjectFailsWithoutTheRightOnAReferencedObject(t *testing.T) {
	i := install(t, map[string]string{".": "resources: [CONFIG/default]"})
	ada := i.newPerson(namespace(t, "taken"))
	ada.call(http.StatusOK, http.MethodPost, "/api/settings", `{"llm_model": "example/model", "llm_api_key": "k"}`)

	t.Run("the facade may not use settings", func(t *testing.T) {
		removeRight(t, i, "facade", "usersettings", "use")
		i.t = t
		ada.call(http.StatusUnprocessableEntity, http.MethodPost, "/api/conversations", `{"conversation_id": "talk"}`)
		awaitRefusal(t, i, "facade", "conversations", ada.namespace)
	})
	t.Run("the manager may not update the finalizers of a Conversation", func(t *testing.T) {
		removeRight(t, i, "manager", "conversations/finalizers", "update")
		converse(t, ada.namespace, "talk", nil)
		awaitRefusal(t, i, "manager", "secrets", ada.namespace)
	})
	t.Run("the manager may not update the finalizers of settings", func(t *testing.T) {
		removeRight(t, i, "manager", "usersettings/finalizers", "update")
		create(t, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace(t, "taken-settings"),
			Name: "default"}})
		awaitRefusal(t, i, "manager", "secrets", "taken-settings")
	})
}

// removeRight removes a verb from the role of a process, and waits until the change takes effect.
func removeRight(t *testing.T, i *installation, process, of, verb string) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "parley-" + process}}
	change(t, role, func() {
		var rules []rbacv1.PolicyRule
		for _, rule := range role.Rules {
			for _, each := range rule.Resources {
				kept := rule.DeepCopy()
				kept.Resources = []string{each}
				if each == of {
					kept.Verbs = slices.DeleteFunc(kept.Verbs, func(v string) bool { return v == verb })
				}
				if len(kept.Verbs) > 0 {
					rules = append(rules, *kept)
				}
			}
		}
		role.Rules = rules
	})
	testenv.Await(t, func() error {
		if hasRight(t, i.user(process), "default", verb, of+".parley.dev") {
			return fmt.Errorf("the process may still %s %s", verb, of)
		}
		return nil
	})
}

func awaitRefusal(t *testing.T, i *installation, process, resource, namespace string) {
	t.Helper()
	testenv.Await(t, func() error {
		var answers []string
		for _, r := range testenv.Requests(t, auditDir, i.user(process)) {
			if r.Verb == "create" && r.Object.Resource == resource && r.Object.Namespace == namespace {
				if r.Status.Code == http.StatusForbidden || r.Status.Code == http.StatusUnprocessableEntity {
					return nil
				}
				answers = append(answers, fmt.Sprint(r.Status.Code))
			}
		}
		return fmt.Errorf("creating %s was not refused; the answers were %s", resource, strings.Join(answers, ", "))
	})
}
