package controllers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// statusPatch forges the class and the address of a session, and the hash of a session key.
const statusPatch = `{"status": {"sessionClass": {"name": "privileged", "firstAttempt": 1}, "podIP": "192.0.2.1", ` +
	`"sessionKeyHash": "0123456789012345678901234567890123456789012345678901234567890123", "warm": 9}}`

func TestOnlyTheManagerWritesStatuses(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	settings, conversation := userSettings(ns, "ada"), makeConversation(ns, "c").Obj()
	create(t, settings, conversation)
	everything := []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}
	const wildcard = "status-wildcard"
	create(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: wildcard}, Rules: everything},
		// A tenant's namespace may have a ServiceAccount with the same name as the manager's.
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "parley-manager"}})
	as := func(user string) client.Client {
		if user != "" {
			create(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{GenerateName: wildcard},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: wildcard},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}})
		}
		config := rest.CopyConfig(env.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		c, err := client.New(config, client.Options{Scheme: env.Scheme, Mapper: env.Client.RESTMapper()})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "status-" + ns}}
	create(t, class)
	patch := client.RawPatch(types.MergePatchType, []byte(statusPatch))
	for who, writer := range map[string]client.Client{
		"a user with all rights":                       as("hostile"),
		"an administrator":                             as(""),
		"the manager's name in another namespace":      as("system:serviceaccount:" + ns + ":parley-manager"),
		"another ServiceAccount in Parley's namespace": as("system:serviceaccount:parley-system:parley-facade"),
	} {
		for _, object := range []client.Object{settings, conversation, class} {
			// The API server applies policies and roles with a delay.
			await(t, func() error {
				err := writer.Status().Patch(t.Context(), object.DeepCopyObject().(client.Object), patch)
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only Parley's manager") {
					return fmt.Errorf("%s writes the status of %T: %w", who, object, err)
				}
				return nil
			})
			update := object.DeepCopyObject().(client.Object)
			if err := writer.Status().Update(t.Context(), update); !apierrors.IsForbidden(err) {
				t.Errorf("%s updates the status of %T: %v", who, object, err)
			}
		}
	}
	startManager(t, ns)
	kubelet{t, ns, "c"}.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if c.Status.SessionClass.Name != v1alpha1.DefaultSessionClass {
		t.Errorf("the recorded class is %+v", c.Status.SessionClass)
	}
	awaitSettings(t, settings, v1alpha1.ReasonReady)
}
