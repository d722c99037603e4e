package webhook

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func mayUse(t *testing.T, name, class string) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"parley.dev"}, Resources: []string{"sessionclasses"}, Verbs: []string{"use"},
			ResourceNames: []string{class}},
	}}
	mustCreate(t, role)
	mustCreate(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	})
}

func createClass(t *testing.T, namespace string) string {
	t.Helper()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "small-" + namespace},
		Spec: v1alpha1.SessionClassSpec{
			Images:    &v1alpha1.SessionImages{Allowed: []string{"example.com/team/*"}},
			Resources: &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](1)},
			Lifetimes: &v1alpha1.SessionLifetimes{MaxDuration: &v1alpha1.Lifetime{Max: &metav1.Duration{Duration: time.Hour}}},
			Agents:    []string{"coder"},
			WorkspaceLimits: &v1alpha1.WorkspaceLimits{MaxSize: ptr.To(resource.MustParse("10Gi")),
				StorageClassNames: []string{"slow", "fast"}},
		}}
	mustCreate(t, class)
	testenv.Await(t, func() error { // until the class is in the webhook's cache
		p := admin(t)
		err := p.Create(t.Context(), object(t, "Conversation", namespace, "{maxDuration: 1m, sessionClassName: "+class.Name+
			"}"), client.DryRunAll)
		if err == nil && slices.ContainsFunc(p.warnings, func(w string) bool { return strings.Contains(w, "SessionClass") }) {
			return errors.New("the class is not in the cache yet")
		}
		return err
	})
	return class.Name
}

func TestNamingAClassNeedsTheRightToUseIt(t *testing.T) {
	namespace := env.Namespace(t, nil)
	class := createClass(t, namespace)
	stranger := user(t, "stranger-"+namespace, namespace, use("default"))
	member := user(t, "member-"+namespace, namespace, use("default"))
	mayUse(t, "member-"+namespace, class)
	for _, kind := range []string{"UserSettings", "Conversation"} {
		t.Run(kind, func(t *testing.T) {
			expectRefused(t, stranger.create(t, object(t, kind, namespace, "sessionClassName: "+class)), class,
				"spec.sessionClassName")
			expectAccepted(t, stranger.create(t, object(t, kind, namespace, "sessionClassName: default")))
			testenv.Await(t, func() error { return member.create(t, object(t, kind, namespace, "sessionClassName: "+class)) })
		})
	}
}

func TestARefusalBecauseOfTheClassNamesTheField(t *testing.T) {
	namespace := env.Namespace(t, nil)
	class := createClass(t, namespace)
	for _, c := range []struct{ kind, spec, field string }{
		{"UserSettings", "sandboxBaseContainerImage: example.com/other/x:1", "spec.sandboxBaseContainerImage"},
		{"UserSettings", "sandboxRuntimeContainerImage: example.com/other/x:1", "spec.sandboxRuntimeContainerImage"},
		{"UserSettings", "remoteRuntimeResourceFactor: 2", "spec.remoteRuntimeResourceFactor"},
		{"Conversation", "agent: writer", "spec.agent"},
		{"Conversation", "maxDuration: 8760h", "spec.maxDuration"},
		{"Conversation", "maxDuration: 0s", "spec.maxDuration"},
		{"Conversation", "workspace: {size: 10.5Gi, storageClassName: fast}", "spec.workspace.size"},
		{"Conversation", "workspace: {size: 10Gi, storageClassName: gold}", "spec.workspace.storageClassName"},
		{"Conversation", "workspace: {size: 10Gi}", "spec.workspace.storageClassName"},
	} {
		t.Run(c.kind+" "+c.spec, func(t *testing.T) {
			named := object(t, c.kind, namespace, "{"+c.spec+", sessionClassName: "+class+"}")
			expectRefused(t, admin(t).create(t, named), class, c.field)
		})
	}
	t.Run("a volume within the limits is accepted", func(t *testing.T) {
		mustCreate(t, object(t, "Conversation", namespace, "{workspace: {size: 10240Mi, storageClassName: slow}, "+
			"sessionClassName: "+class+"}"))
	})
	t.Run("updates are checked too", func(t *testing.T) {
		conversation := mustCreate(t, object(t, "Conversation", namespace, "{maxDuration: 30m, sessionClassName: "+class+"}"))
		root := admin(t)
		expectRefused(t, root.change(t, conversation, setField(t, "0s", "spec", "maxDuration")), class, "spec.maxDuration")
		expectAccepted(t, root.change(t, conversation, setField(t, "1h", "spec", "maxDuration")))
		expectAccepted(t, root.change(t, conversation, setField(t, true, "spec", "suspend")))
	})
	t.Run("a stricter class does not block changes of other fields", func(t *testing.T) {
		loose := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "loose-" + namespace}}
		mustCreate(t, loose)
		settings := mustCreate(t, object(t, "UserSettings", namespace, "{remoteRuntimeResourceFactor: 4, sessionClassName: "+
			loose.Name+"}"))
		loose.Spec.Resources = &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](1)}
		if err := env.Client.Update(t.Context(), loose); err != nil {
			t.Fatal(err)
		}
		root := admin(t)
		testenv.Await(t, func() error { // until the stricter class is in the cache
			if root.create(t, object(t, "UserSettings", namespace, "{remoteRuntimeResourceFactor: 4, sessionClassName: "+
				loose.Name+"}")) == nil {
				return errors.New("the stricter class is not in the cache yet")
			}
			return nil
		})
		expectAccepted(t, root.change(t, settings, setField(t, "de", "spec", "language")))
		expectRefused(t, root.change(t, settings, setField(t, int64(8), "spec", "remoteRuntimeResourceFactor")), loose.Name,
			"spec.remoteRuntimeResourceFactor")
	})
}

func TestLifetimesOfARunningSessionStayWithinTheLimitsOfItsClass(t *testing.T) {
	namespace := env.Namespace(t, nil)
	class := createClass(t, namespace)
	hour := &metav1.Duration{Duration: time.Hour}
	for name, started := range map[string]*v1alpha1.StartedClass{
		"recorded limits": {Name: "gone", FirstAttempt: 1, SignedSecret: true,
			Max: &v1alpha1.LifetimeLimits{MaxDuration: hour}},
		"a class of an earlier version": {Name: class, FirstAttempt: 1},
	} {
		t.Run(name, func(t *testing.T) {
			// The UserSettings "ada" do not exist, as if the user had deleted them. The webhook must use the
			// class in the status of the Conversation.
			conversation := mustCreate(t, object(t, "Conversation", namespace, "{userSettingsName: ada, maxDuration: 30m}"))
			recorded := &v1alpha1.Conversation{}
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(conversation), recorded); err != nil {
				t.Fatal(err)
			}
			recorded.Status.State, recorded.Status.SessionClass = v1alpha1.StateRunning, started
			if err := env.Client.Status().Update(t.Context(), recorded); err != nil {
				t.Fatal(err)
			}
			root := admin(t)
			for _, duration := range []string{"0s", "2h"} {
				expectRefused(t, root.change(t, conversation, setField(t, duration, "spec", "maxDuration")), started.Name,
					"spec.maxDuration")
			}
			expectRefused(t, root.change(t, conversation, func(o *unstructured.Unstructured) {
				setField(t, "0s", "spec", "maxDuration")(o)
				setField(t, "2026-01-01T00:00:00Z", "spec", "restartAt")(o) // has no effect on a running session
			}), started.Name, "spec.maxDuration")
			expectAccepted(t, root.change(t, conversation, setField(t, "1h", "spec", "maxDuration")))
		})
	}
}
