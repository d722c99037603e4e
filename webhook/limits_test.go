package webhook

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestAUserCannotHaveMoreConversationsThanTheClassAllows(t *testing.T) {
	namespace, root := env.Namespace(t, nil), admin(t)
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "few-" + namespace},
		Spec: v1alpha1.SessionClassSpec{MaxConversationsPerUser: ptr.To[int32](2)}}
	mustCreate(t, class)
	// These Conversations do not meet the match condition of the webhook vconversation.parley.dev. The
	// API server therefore calls only the webhook that checks limits.
	plain := func(user string) client.Object {
		return object(t, "Conversation", namespace, "{userSettingsName: "+user+", sessionClassName: "+class.Name+"}")
	}
	first := plain("ada")
	mustCreate(t, first)
	mustCreate(t, plain("ada"))
	var refused error
	testenv.Await(t, func() error { // until the cache has the class and both Conversations
		if refused = root.Create(t.Context(), plain("ada"), client.DryRunAll); refused == nil {
			return fmt.Errorf("a third Conversation is accepted")
		}
		return nil
	})
	expectRefused(t, refused, class.Name, "spec.userSettingsName")
	for _, part := range []string{"maxConversationsPerUser", "allows 2 Conversations"} {
		if !strings.Contains(refused.Error(), part) {
			t.Errorf("%v does not name %s", refused, part)
		}
	}
	again := plain("ada")
	again.SetName(first.GetName())
	if err := root.create(t, again); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a repeated request fails with %v", err)
	}
	expectAccepted(t, root.create(t, plain("bob")))
	if err := root.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, func() error { return root.create(t, plain("ada")) })
}

// If a Conversation is deleted and recreated while the connection to the API server is lost, the
// cache reports one update instead of a deletion and a creation. The update may change the user.
func TestARecreatedConversationCountsForItsNewUser(t *testing.T) {
	informer := &controllertest.FakeInformer{}
	objects := &informertest.FakeInformers{Scheme: env.Client.Scheme(),
		InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
			v1alpha1.SchemeGroupVersion.WithKind("Conversation"): informer}}
	counts, err := countConversations(t.Context(), objects)
	if err != nil {
		t.Fatal(err)
	}
	of := func(user string) *v1alpha1.Conversation {
		return &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
			Spec: v1alpha1.ConversationSpec{UserSettingsName: user}}
	}
	expect := func(ada, bob int) {
		t.Helper()
		if a, b := counts.of(client.ObjectKey{Namespace: "ns", Name: "ada"}), counts.of(client.ObjectKey{Namespace: "ns",
			Name: "bob"}); a != ada || b != bob {
			t.Errorf("ada has %d and bob %d Conversations, want %d and %d", a, b, ada, bob)
		}
	}
	informer.Add(of("ada"))
	expect(1, 0)
	informer.Update(of("ada"), of("bob"))
	expect(0, 1)
	informer.Delete(of("bob"))
	expect(0, 0)
}

func TestTheDefaultLimitOfConversationsIs1000(t *testing.T) {
	if limit := (&v1alpha1.SessionClassSpec{}).MaxConversations(); limit != 1000 {
		t.Errorf("the limit is %d", limit)
	}
}

// No controller computes the usage of quotas in this test, so the test itself sets the usage.
func TestTheSampleQuotaLimitsTheNumberOfConversations(t *testing.T) {
	namespace, root := env.Namespace(t, nil), admin(t)
	quota := &corev1.ResourceQuota{}
	text, err := os.ReadFile(testenv.Path("config", "samples", "quota.yaml"))
	if err == nil {
		err = yaml.UnmarshalStrict(text, quota)
	}
	if err != nil {
		t.Fatal(err)
	}
	quota.Namespace = namespace
	for name := range quota.Spec.Hard {
		quota.Spec.Hard[name] = resource.MustParse("1")
	}
	mustCreate(t, quota)
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{}
	for name := range quota.Spec.Hard {
		quota.Status.Used[name] = resource.MustParse("0")
	}
	if err := env.Client.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"Conversation", "UserSettings"} {
		testenv.Await(t, func() error {
			err := root.create(t, object(t, kind, namespace, "{}"))
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
				return fmt.Errorf("a second %s: %w", kind, err)
			}
			return nil
		})
	}
}

func TestARefusalOfALargeObjectNamesTheField(t *testing.T) {
	namespace, root := env.Namespace(t, nil), admin(t)
	text := strings.Repeat("日", 120<<10) // the schema counts characters
	large := object(t, "Conversation", namespace, "{initialUserMsg: "+text+", conversationInstructions: "+text+"}")
	if err := root.create(t, large); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("texts of 720 KiB: %v", err)
	}
	args := "[" + strings.Repeat("'"+strings.Repeat("x", 4000)+"', ", 60) + "]"
	// servers returns tool servers with the given number of variables. Each variable has its own
	// Secret.
	servers := func(variables int) string {
		var text strings.Builder
		for i := range variables {
			if i%64 == 0 {
				fmt.Fprintf(&text, "{name: s%d, command: c, env: [", i)
			}
			fmt.Fprintf(&text, "{name: V%d, secretRef: {name: s%d, key: k}}, ", i, i)
			if i%64 == 63 || i == variables-1 {
				text.WriteString("]}, ")
			}
		}
		return text.String()
	}
	for _, kind := range []string{"Conversation", "UserSettings"} {
		for field, tools := range map[string]string{
			"spec.mcpConfig":              "stdioServers: [{name: a, command: c, args: " + args + "}]",
			"spec.mcpConfig.stdioServers": "stdioServers: [" + servers(maxVariables+1) + "]",
			"spec.mcpConfig.stdioServers[3].env[63].secretRef": "stdioServers: [" + servers(maxVariables) + "], " +
				"sseServers: [{url: 'https://example.com', apiKeyRef: {name: one, key: k}}]",
		} {
			expectRefused(t, root.create(t, object(t, kind, namespace, "mcpConfig: {"+tools+"}")), "", field)
		}
	}
}

func TestOnlyTheFirst64KiBAreSearchedForLiteralKeys(t *testing.T) {
	key, padding := "--token=abcdef", strings.Repeat("abc ", maxGuessed/4)
	for args, want := range map[string]int{key + padding + padding: 1, padding + padding + key: 0} {
		f := &findings{}
		left := f.warnOfLiteralKeys(field.NewPath("server"), v1alpha1.MCPStdioServer{Args: []string{args}}, maxGuessed)
		if len(f.warnings) != want || left != 0 {
			t.Errorf("%d warnings, %d bytes left, want %d warnings", len(f.warnings), left, want)
		}
	}
}
