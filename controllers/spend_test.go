package controllers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func limited(month string) v1alpha1.SessionClassSpec {
	return v1alpha1.SessionClassSpec{Spend: &v1alpha1.SpendingLimits{
		PerUser: &v1alpha1.SpendingLimit{Month: &month}, NoticePercent: ptr.To[int32](50)}}
}

func claimsOf(t *testing.T, ns, name string) session.SpendClaims {
	t.Helper()
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName(name)},
		secret); err != nil {
		t.Fatal(err)
	}
	claims := session.ReadSpendClaims(string(secret.Data[session.ArchiveTokenFile]))
	if claims == nil {
		t.Fatal("the session's token has no claims about costs")
	}
	return *claims
}

// inOwnNamespace starts a manager whose catalogues are in the namespace of the test.
func inOwnNamespace(t *testing.T, archive, models string) (ns string, prices *corev1.ConfigMap) {
	t.Helper()
	ns = env.Namespace(t, nil)
	startManagerOptions(t, 4, ns, Options{Namespace: ns, RuntimeImage: "example.com/parley:1", ArchiveURL: archive})
	prices = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.ModelsName},
		Data: map[string]string{"ours": models}}
	create(t, prices, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.AgentCatalogueName},
		Data: map[string]string{session.DefaultAgent: "command: [coder]"}})
	return ns, prices
}

func TestASessionKeepsTheSpendingLimitsItStartedWith(t *testing.T) {
	t.Parallel()
	ns, _ := inOwnNamespace(t, newTurnArchive(t).url, "good: {input: 1, output: 2}")
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: createClass(t, ns, limited("50"))}}
	ada, bob := userSettings(ns, "ada"), userSettings(ns, "bob")
	ada.Spec.Owner, ada.Spec.LLMModel = &v1alpha1.SettingsOwner{Username: "oidc:ada"}, ptr.To("local/good")
	create(t, ada, bob, makeConversation(ns, "c").With(ofClass(class.Name)).Obj(),
		makeConversation(ns, "free").With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "bob" }).Obj())
	k := kubelet{t, ns, "c"}
	k.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	want := session.SpendClaims{Owner: "oidc:ada", Namespace: ns, Soft: 50,
		PerUser: session.SpendLimits{Month: 50 * session.Dollar}}
	if got := claimsOf(t, ns, "c"); got != want {
		t.Errorf("the session has %+v", got)
	}
	kubelet{t, ns, "free"}.start()
	if got := claimsOf(t, ns, "free"); got != (session.SpendClaims{Owner: string(bob.UID), Namespace: ns}) {
		t.Errorf("without limits and owner, the session has %+v", got)
	}

	change(t, class, func(c *v1alpha1.SessionClass) { c.Spec = limited("5") })
	k.lose()
	k.awaitAttempt("2")
	if got := claimsOf(t, ns, "c"); got != want {
		t.Errorf("after a replacement, the session has %+v", got)
	}
	change(t, c, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	k.releaseAttempt("2")
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	change(t, c, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	want.PerUser.Month = 5 * session.Dollar
	await(t, func() error {
		secret := &corev1.Secret{}
		if err := env.Client.Get(t.Context(), sessionObject(c), secret); err != nil {
			return err
		}
		got := session.ReadSpendClaims(string(secret.Data[session.ArchiveTokenFile]))
		if got == nil || *got != want {
			return fmt.Errorf("after a start, the session has %+v", got)
		}
		return nil
	})
}

func TestASpendingLimitNeedsAPriceAndAnArchive(t *testing.T) {
	t.Parallel()
	expect := func(t *testing.T, ns, message string) {
		t.Helper()
		if c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed); !strings.Contains(c.Status.Message,
			message) {
			t.Errorf("the message is %q", c.Status.Message)
		}
	}
	start := func(t *testing.T, ns string, edit func(*v1alpha1.UserSettingsSpec)) *v1alpha1.UserSettings {
		t.Helper()
		settings := userSettings(ns, "ada")
		settings.Spec.LLMModel = ptr.To("local/priced")
		if edit != nil {
			edit(&settings.Spec)
		}
		create(t, settings, makeConversation(ns, "c").With(ofClass(createClass(t, ns, limited("50")))).Obj())
		return settings
	}
	t.Run("a price", func(t *testing.T) {
		ns, prices := inOwnNamespace(t, newTurnArchive(t).url, "other: {input: 1, output: 2}")
		start(t, ns, nil)
		expect(t, ns, "local/priced has no price")
		change(t, prices, func(m *corev1.ConfigMap) { m.Data["overrides"] = "local/priced: {input: 1, output: 2}" })
		kubelet{t, ns, "c"}.pod()
	})
	t.Run("an archive", func(t *testing.T) {
		ns, _ := inOwnNamespace(t, "", "priced: {input: 1, output: 2}")
		start(t, ns, nil)
		expect(t, ns, "this installation has no archive")
	})
	t.Run("Parley's runtime", func(t *testing.T) {
		ns, _ := inOwnNamespace(t, newTurnArchive(t).url, "priced: {input: 1, output: 2}")
		settings := start(t, ns, func(s *v1alpha1.UserSettingsSpec) { s.SandboxRuntimeContainerImage = ptr.To("mine:1") })
		expect(t, ns, "sandboxRuntimeContainerImage")
		change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.SandboxRuntimeContainerImage = nil })
		kubelet{t, ns, "c"}.pod()
	})
}
