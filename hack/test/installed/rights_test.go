package installed

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/openid"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// plainLists makes client-go send list requests instead of watch lists. Older API servers have no
// watch lists, so the roles must grant the right to list.
const plainLists = "KUBE_FEATURE_WatchListClient=false"

// TestEveryRightIsUsedAndNoneIsMissing lets the processes use all their features. A step fails if
// it needs a missing right. Afterwards the test reports the rights that no request used.
func TestEveryRightIsUsedAndNoneIsMissing(t *testing.T) {
	issuer := openid.Start(t)
	i := install(t, map[string]string{".": "resources: [CONFIG/default]\npatches:\n- target: {kind: Deployment, name: " +
		"parley-manager}\n  patch: |-\n    - {op: add, path: /spec/template/spec/containers/0/args/-, value: " +
		"--oidc-issuer-url=" + issuer.URL + "}\n    - {op: add, path: /spec/template/spec/containers/0/args/-, value: " +
		"--oidc-client-id=" + openid.ClientID + "}"}, plainLists)
	for _, step := range []struct {
		name string
		do   func(*testing.T, *installation)
	}{
		{"Prometheus reads metrics", metricsAreRead},
		{"a user stores and changes keys over HTTP", keysOverHTTP},
		{"a user starts, stops and deletes a conversation over HTTP", conversationsOverHTTP},
		{"a ServiceAccount calls over HTTP", kubernetesTokens},
		{"a person is onboarded", func(t *testing.T, i *installation) { onboards(t, i, issuer) }},
		{"a session stops twice for one reason, and is deleted after its TTL", sessionsEnd},
		{"objects shared by sessions are changed", sharedObjectsAreChanged},
		{"foreign objects have the names of Parley's objects", foreignObjects},
		{"a volume is deleted", volumesAreDeleted},
		{"a session gets a warm pod with a volume", warmPodsAreAdopted},
	} {
		t.Run(step.name, func(t *testing.T) {
			i.t = t
			step.do(t, i)
		})
	}
	for _, process := range []string{"manager", "facade", "archive"} {
		i.stop[process]() // the audit log contains a watch only after its end
		t.Run("the "+process, func(t *testing.T) { expectRightsUsed(t, i, process) })
	}
}

// checkedElsewhere lists rights that the API server or the webhook checks during requests for other
// objects. No audited request shows that these rights are used.
// TestCreatingAnObjectFailsWithoutTheRightOnAReferencedObject tests them.
var checkedElsewhere = []string{"update conversations/finalizers.parley.dev",
	"update usersettings/finalizers.parley.dev", "use usersettings.parley.dev"}

func expectRightsUsed(t *testing.T, i *installation, process string) {
	used := map[string]bool{}
	for _, r := range testenv.Requests(t, auditDir, i.user(process)) {
		resource := r.Object.Resource
		if r.Object.Subresource != "" {
			resource += "/" + r.Object.Subresource
		}
		if r.Object.Group != "" {
			resource += "." + r.Object.Group
		}
		if r.Status.Code == http.StatusForbidden && r.Object.Resource != "" {
			t.Errorf("the request to %s %s was forbidden", r.Verb, resource)
		}
		used[r.Verb+" "+resource] = true
		used[r.Verb+" "+resource+" "+r.Object.Name] = true
	}
	for _, right := range rightsOf(t, i, process) {
		if !used[right] && !slices.Contains(checkedElsewhere, right) {
			t.Errorf("the right to %s was never used", right)
		}
	}
}

// rightsOf returns the rights of a process in the form "verb resource" or "verb resource name".
func rightsOf(t *testing.T, i *installation, process string) []string {
	t.Helper()
	var rules []rbacv1.PolicyRule
	isBound := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			return "system:serviceaccount:"+s.Namespace+":"+s.Name == i.user(process)
		})
	}
	var everywhere rbacv1.ClusterRoleBindingList
	var here rbacv1.RoleBindingList
	for _, list := range []client.ObjectList{&everywhere, &here} {
		if err := env.Client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	for _, binding := range everywhere.Items {
		if role := (&rbacv1.ClusterRole{}); isBound(binding.Subjects) {
			if err := env.Client.Get(t.Context(), client.ObjectKey{Name: binding.RoleRef.Name}, role); err != nil {
				t.Fatal(err)
			}
			rules = append(rules, role.Rules...)
		}
	}
	for _, binding := range here.Items {
		if role := (&rbacv1.Role{}); isBound(binding.Subjects) {
			if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: binding.Namespace, Name: binding.RoleRef.Name},
				role); err != nil {
				t.Fatal(err)
			}
			rules = append(rules, role.Rules...)
		}
	}
	var rights []string
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					right := strings.TrimSuffix(verb+" "+resource+"."+group, ".")
					for _, name := range rule.ResourceNames {
						rights = append(rights, right+" "+name)
					}
					if len(rule.ResourceNames) == 0 {
						rights = append(rights, right)
					}
				}
			}
		}
	}
	return rights
}

func metricsAreRead(t *testing.T, i *installation) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "prometheus"}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "prometheus"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "parley-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "prometheus"}},
	}
	create(t, account, binding)
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), binding) })
	token := tokenOf(t, account)
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true}}} // self-signed
	testenv.Await(t, func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.metricsURL, http.NoBody)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := insecure.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("metrics: %s", response.Status)
		}
		return nil
	})
}

func keysOverHTTP(t *testing.T, i *installation) {
	ada := i.newPerson(namespace(t, "rights-keys"))
	key := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace,
		Name: v1alpha1.ManagedName("default", v1alpha1.ManagedLLMKey, "example")}}
	for _, value := range []string{"k1", "k2"} {
		ada.call(http.StatusOK, http.MethodPost, "/api/settings", `{"llm_model": "example/model", "llm_api_key": "`+value+
			`"}`)
		testenv.Await(t, func() error {
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(key), key); err != nil {
				return err
			}
			if len(key.OwnerReferences) == 0 || string(key.Data[v1alpha1.ManagedSecretKey]) != value {
				return fmt.Errorf("the Secret is not adopted, or has another value")
			}
			return nil
		})
	}
	ada.call(http.StatusOK, http.MethodGet, "/api/usage", "")
	// A facade that is killed while it stores a key leaves a Secret without an owner.
	orphan := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "default-search-api-key",
			Labels: map[string]string{v1alpha1.LabelUserSettings: "default"}},
		Type: v1alpha1.SecretTypeUserKey, StringData: map[string]string{"key": "k3"},
	}
	create(t, orphan)
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "default"}}
	change(t, settings, func() { settings.Spec.SearchAPIKeyRef = &v1alpha1.SecretKeyRef{Name: orphan.Name, Key: "key"} })
	testenv.Await(t, func() error {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(orphan), orphan); err != nil ||
			len(orphan.OwnerReferences) == 0 {
			return fmt.Errorf("the Secret is not adopted: %w", err)
		}
		return nil
	})
	ada.call(http.StatusOK, http.MethodGet, "/api/settings", "")
	ada.call(http.StatusOK, http.MethodGet, "/api/options/agents", "")
	ada.call(http.StatusOK, http.MethodGet, "/api/options/models", "")
}

func conversationsOverHTTP(t *testing.T, i *installation) {
	ada := i.newPerson(namespace(t, "rights-http"))
	ada.call(http.StatusOK, http.MethodPost, "/api/settings", `{"llm_model": "example/model", "llm_api_key": "k"}`)
	ada.call(http.StatusOK, http.MethodPost, "/api/conversations", `{"conversation_id": "talk", "replay_json": "[]"}`)
	awaitPod(t, ada.namespace, "talk")
	ada.call(http.StatusOK, http.MethodGet, "/api/conversations", "")
	ada.call(http.StatusOK, http.MethodPost, "/api/conversations/talk/stop", "")
	ada.call(http.StatusOK, http.MethodDelete, "/api/conversations/talk", "")
}

// kubernetesTokens sends a valid token of a ServiceAccount that owns no settings.
func kubernetesTokens(t *testing.T, i *installation) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace(t, "rights-token"),
		Name: "pipeline"}}
	create(t, account)
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"parley"}}}
	if err := env.Client.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.facadeURL+"/api/conversations", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token.Status.Token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("a ServiceAccount without settings is answered with %s", response.Status)
	}
}

// onboards makes the manager create the UserSettings of a new person. The webhook checks these
// UserSettings.
func onboards(t *testing.T, i *installation, issuer *openid.Issuer) {
	team := namespace(t, "rights-team")
	create(t, &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "rights-class"}})
	create(t, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "team"}})
	create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: i.workloads["manager"].Namespace,
		Name: v1alpha1.OnboardingName}, Data: map[string]string{"onboarding.yaml": "groups: [{group: 'oidc:red', " +
		"namespace: " + team + ", sessionClassName: rights-class, inheritFrom: team}]"}})
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // the certificate is for the name of the Service
	response, err := client.Post(i.onboardingURL, "application/json",
		strings.NewReader(`{"token": "`+issuer.Token("ada@example.com", "red")+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct {
		Settings []struct{ Namespace, Name string }
		Problems []string
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || len(answer.Settings) != 1 ||
		len(answer.Problems) > 0 {
		t.Errorf("the manager answers %s %+v: %v", response.Status, answer, err)
	}
}

// sessionsEnd suspends a session two times and completes another session. The second suspension
// repeats an event, so the manager updates the existing event.
func sessionsEnd(t *testing.T, i *installation) {
	ada := i.newPerson(namespace(t, "rights-end"))
	talk := converse(t, ada.namespace, "talk", nil)
	for range 2 {
		awaitPod(t, ada.namespace, "talk")
		change(t, talk, func() { talk.Spec.Suspend = true })
		awaitReason(t, talk, v1alpha1.ReasonSuspended)
		change(t, talk, func() { talk.Spec.Suspend = false })
	}
	brief := converse(t, ada.namespace, "brief", func(s *v1alpha1.ConversationSpec) {
		s.TTLAfterStopped =
			&metav1.Duration{}
	})
	finish(t, awaitPod(t, ada.namespace, "brief"))
	testenv.Await(t, func() error { return gone(t, brief) })
}

func sharedObjectsAreChanged(t *testing.T, i *installation) {
	ada := i.newPerson(namespace(t, "rights-shared"))
	converse(t, ada.namespace, "talk", nil)
	awaitPod(t, ada.namespace, "talk")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "sessions"}}
	change(t, service, func() { service.Spec.Selector = map[string]string{"somebody": "else"} })
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace,
		Name: "parley-sessions-default"}}
	change(t, policy, func() { policy.Spec.Egress = nil })
	testenv.Await(t, func() error {
		for _, o := range []client.Object{service, policy} {
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
		}
		if service.Spec.Selector["somebody"] != "" || len(policy.Spec.Egress) == 0 {
			return fmt.Errorf("the change was not reverted")
		}
		return nil
	})
}

// foreignObjects creates objects whose names the manager needs. The manager reads them before it
// reports the conflict.
func foreignObjects(t *testing.T, i *installation) {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	for name, foreign := range map[string]client.Object{
		"rights-service": &corev1.Service{ObjectMeta: meta("rights-service", "sessions"),
			Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}},
		"rights-policy": &networkingv1.NetworkPolicy{ObjectMeta: meta("rights-policy", "parley-sessions-default")},
		"rights-claim": &corev1.PersistentVolumeClaim{ObjectMeta: meta("rights-claim", "talk-workspace"),
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity(
					"1Gi")}},
			}},
		"rights-pod": &corev1.Pod{ObjectMeta: meta("rights-pod", "talk-session"),
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	} {
		ada := i.newPerson(namespace(t, name))
		create(t, foreign)
		talk := converse(t, ada.namespace, "talk", func(s *v1alpha1.ConversationSpec) {
			s.Workspace = &v1alpha1.Workspace{
				Size: "1Gi"}
		})
		testenv.Await(t, func() error {
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(talk), talk); err != nil {
				return err
			}
			if !slices.ContainsFunc(talk.Status.Conditions, func(c metav1.Condition) bool {
				return c.Type == v1alpha1.ConditionStalled && c.Status == metav1.ConditionTrue
			}) {
				return fmt.Errorf("%s is %s, %s: %s", name, talk.Status.State, talk.Status.Reason, talk.Status.Message)
			}
			return nil
		})
	}
}

func warmPodsAreAdopted(t *testing.T, i *installation) {
	ada := i.newPerson(namespace(t, "rights-warm"))
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "warm"}, Spec: v1alpha1.SessionClassSpec{
		Workspace: &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: "1Gi"}},
		Warm: &v1alpha1.WarmPods{Size: 1, NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{corev1.LabelMetadataName: ada.namespace}}},
	}}
	create(t, class)
	pod := &corev1.Pod{}
	testenv.Await(t, func() error {
		var pods corev1.PodList
		if err := env.Client.List(t.Context(), &pods, client.InNamespace(ada.namespace)); err != nil || len(pods.Items) != 1 {
			return fmt.Errorf("%d pods: %w", len(pods.Items), err)
		}
		pod = &pods.Items[0]
		pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, "127.0.0.1"
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return env.Client.Status().Update(t.Context(), pod)
	})
	testenv.Await(t, func() error { // the class's status shows that the manager knows the ready pod
		err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(class), class)
		if err == nil && (class.Status.Warm == nil || *class.Status.Warm != 1) {
			err = fmt.Errorf("the class has the status %+v", class.Status)
		}
		return err
	})
	c := converse(t, ada.namespace, "talk", func(s *v1alpha1.ConversationSpec) { s.SessionClassName = &class.Name })
	for _, o := range []client.Object{pod, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name}}} {
		testenv.Await(t, func() error {
			err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o)
			if err == nil && !metav1.IsControlledBy(o, c) {
				err = fmt.Errorf("%T %s is not adopted", o, o.GetName())
			}
			return err
		})
	}
}

func volumesAreDeleted(t *testing.T, i *installation) {
	size := "1Gi"
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "brief"}, Spec: v1alpha1.SessionClassSpec{
		Workspace: &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: size}, TTL: &metav1.Duration{}},
	}}
	create(t, class, storageClass())
	ada := i.newPerson(namespace(t, "rights-volume"))
	converse(t, ada.namespace, "talk", func(s *v1alpha1.ConversationSpec) { s.SessionClassName = &class.Name })
	finish(t, awaitPod(t, ada.namespace, "talk"))
	testenv.Await(t, func() error {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace,
			Name: "talk-workspace"}}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err == nil &&
			claim.DeletionTimestamp == nil {
			return fmt.Errorf("the claim still exists")
		}
		return nil
	})
}
