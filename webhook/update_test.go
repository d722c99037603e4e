package webhook

import (
	"context"
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func (p *actor) change(t *testing.T, o *unstructured.Unstructured, change func(*unstructured.Unstructured)) error {
	t.Helper()
	changed := o.DeepCopy()
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(o), changed); err != nil {
		t.Fatal(err)
	}
	change(changed)
	return p.Update(t.Context(), changed, client.FieldValidation("Strict"))
}

func setField(t *testing.T, value any, path ...string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		t.Helper()
		if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
			t.Fatal(err)
		}
	}
}

func TestChangingSettingsNeedsAccessToAllTheirSecrets(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, secret(namespace, "theirs"))
	settings := mustCreate(t, object(t, "UserSettings", namespace, "llmAPIKeyRef: {name: theirs, key: k}"))
	thief := user(t, "thief", namespace)
	owner := user(t, "owner", namespace, get("secrets", "theirs"))
	redirect := setField(t, "https://elsewhere.example.com", "spec", "llmBaseURL")

	t.Run("a key cannot be sent elsewhere", func(t *testing.T) {
		expectRefused(t, thief.change(t, settings, redirect), `Secret "theirs"`, "spec.llmAPIKeyRef")
		expectAccepted(t, owner.change(t, settings, redirect))
	})
	t.Run("a label change needs no access", func(t *testing.T) {
		expectAccepted(t, thief.change(t, settings,
			func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": "b"}) }))
	})
	t.Run("settings that are being deleted are checked too", func(t *testing.T) {
		expectAccepted(t, thief.change(t, settings,
			func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"example.com/hold"}) }))
		if err := env.Client.Delete(t.Context(), settings.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		expectRefused(t, thief.change(t, settings, setField(t, "https://third.example.com", "spec", "llmBaseURL")), "",
			"spec.llmAPIKeyRef")
		expectAccepted(t, thief.change(t, settings, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) }))
	})
}

func TestChangedSettingsAreValidated(t *testing.T) {
	settings := mustCreate(t, object(t, "UserSettings", env.Namespace(t, nil), "{}"))
	expectRefused(t, admin(t).change(t, settings, setField(t, "no-address", "spec", "email")), "", "spec.email")
	expectAccepted(t, admin(t).change(t, settings, setField(t, "jane@example.com", "spec", "email")))
}

func TestOtherFieldsCanChangeEvenIfTheModelLacksAProvider(t *testing.T) {
	ctx := byAdmin(t.Context(), env.Namespace(t, nil))
	validator := &userSettingsValidator{guard: newGuard(env.Client, env.Client, Options{})}
	settings := func(model string, change func(*v1alpha1.UserSettingsSpec)) *v1alpha1.UserSettings {
		s := &v1alpha1.UserSettings{Spec: v1alpha1.UserSettingsSpec{LLMModel: &model}}
		change(&s.Spec)
		return s
	}
	plain, withBase := func(*v1alpha1.UserSettingsSpec) {}, func(s *v1alpha1.UserSettingsSpec) {
		s.LLMBaseURL = ptr.To("https://llm.example.com")
	}
	for name, c := range map[string]struct {
		old, changed *v1alpha1.UserSettings
		refused      bool
	}{
		"another field": {settings("mystery", plain), settings("mystery", func(s *v1alpha1.UserSettingsSpec) {
			s.GitUserName = ptr.To("Ada")
		}), false},
		"another model without a provider": {settings("mystery", plain), settings("riddle", plain), true},
		"a model with a provider":          {settings("mystery", plain), settings("openai/mystery", plain), false},
		"no base URL any more":             {settings("mystery", withBase), settings("mystery", plain), true},
	} {
		if _, err := validator.ValidateUpdate(ctx, c.old, c.changed); apierrors.IsInvalid(err) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLifecycleChangesNeedNoAccessToSecrets(t *testing.T) {
	namespace := env.Namespace(t, nil)
	conversation := mustCreate(t, object(t, "Conversation", namespace,
		"mcpConfig: {sseServers: [{url: 'https://example.com', apiKeyRef: {name: theirs, key: k}}]}"))
	unprivileged := user(t, "unprivileged", namespace)
	for field, value := range map[string]any{
		"suspend": true, "idleTimeout": "1h", "startDeadline": "1h", "ttlAfterStopped": "1h",
	} {
		t.Run(field, func(t *testing.T) {
			expectAccepted(t, unprivileged.change(t, conversation, setField(t, value, "spec", field)))
		})
	}
	expectWarnings(t, unprivileged)
}

// A resumed session gets the Secrets that its UserSettings name now. A user without access to them
// must not get access through the session.
func TestRestartingASessionNeedsAccessToItsSecrets(t *testing.T) {
	namespace := env.Namespace(t, nil)
	mustCreate(t, secret(namespace, "theirs"))
	settings := object(t, "UserSettings", namespace, "llmAPIKeyRef: {name: theirs, key: k}")
	settings.SetName("ada")
	mustCreate(t, settings)
	conversation := mustCreate(t, object(t, "Conversation", namespace, "{userSettingsName: ada, suspend: true}"))
	thief := user(t, "thief", namespace)
	owner := user(t, "owner", namespace, use("ada"))
	for field, value := range map[string]any{"suspend": false, "restartAt": "2026-01-01T00:00:00Z"} {
		t.Run(field, func(t *testing.T) {
			again := setField(t, value, "spec", field)
			expectRefused(t, thief.change(t, conversation, again), "ada", "spec.userSettingsName")
			expectAccepted(t, owner.change(t, conversation, again))
			expectAccepted(t, thief.change(t, conversation, setField(t, true, "spec", "suspend")))
		})
	}
}

func TestALargeConversationCanBeChanged(t *testing.T) {
	images := make([]string, 16)
	for i := range images {
		images[i] = "data:image/png;base64," + strings.Repeat("A", 16000)
	}
	conversation := mustCreate(t, object(t, "Conversation", env.Namespace(t, nil), "imageURLs: ['"+strings.Join(images,
		"', '")+
		"']\ninitialUserMsg: "+strings.Repeat("m", 131072)+"\nconversationInstructions: "+strings.Repeat("i", 131072)))
	expectAccepted(t, admin(t).change(t, conversation,
		func(o *unstructured.Unstructured) { o.SetLabels(map[string]string{"a": "b"}) }))
	expectAccepted(t, admin(t).change(t, conversation, setField(t, true, "spec", "suspend")))
}

// Because of the match conditions, the webhook receives only updates with a relevant change. This
// test shows that the validators do not rely on the match conditions.
func TestUnchangedFieldsAreNotChecked(t *testing.T) {
	url := "nowhere"
	settings := &v1alpha1.UserSettings{Spec: v1alpha1.UserSettingsSpec{LLMBaseURL: &url}}
	if _, err := (&userSettingsValidator{}).ValidateUpdate(t.Context(), settings, settings.DeepCopy()); err != nil {
		t.Errorf("UserSettings: %v", err)
	}
	conversation := &v1alpha1.Conversation{Spec: v1alpha1.ConversationSpec{Repository: &url}}
	suspended := conversation.DeepCopy()
	suspended.Spec.Suspend = true
	if _, err := (&conversationValidator{}).ValidateUpdate(t.Context(), conversation, suspended); err != nil {
		t.Errorf("Conversation: %v", err)
	}
}

func TestAnImmutableFieldCannotBeSetLater(t *testing.T) {
	old := &v1alpha1.Conversation{Spec: v1alpha1.ConversationSpec{UserSettingsName: "default"}}
	url := "nowhere"
	changed := old.DeepCopy()
	changed.Spec.Repository = &url
	validator := &conversationValidator{guard: newGuard(env.Client, env.Client, Options{})}

	_, err := validator.ValidateUpdate(byAdmin(t.Context(), env.Namespace(t, nil)), old, changed)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.repository") {
		t.Errorf("should be refused for spec.repository, got: %v", err)
	}
}

// byAdmin returns the context of a request by a member of an admin group.
func byAdmin(ctx context.Context, namespace string) context.Context {
	return admission.NewContextWithRequest(ctx, admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Namespace: namespace, UserInfo: authenticationv1.UserInfo{Username: "member", Groups: []string{"system:masters"}},
	}})
}

func TestAnObjectThatCannotBeCheckedIsRefusedWithoutDetails(t *testing.T) {
	const detail = "detail-7c21"
	fails := errors.New(detail)
	noReviews := interceptor.NewClient(env.Client, interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return fails },
	})
	noReads := interceptor.NewClient(env.Client, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return fails
		},
	})
	ref := v1alpha1.SecretKeyRef{Name: "s", Key: "k"}
	settings := &v1alpha1.UserSettings{Spec: v1alpha1.UserSettingsSpec{LLMAPIKeyRef: &ref}}
	conversation := &v1alpha1.Conversation{Spec: v1alpha1.ConversationSpec{UserSettingsName: "default"}}
	for name, guard := range map[string]guard{
		"access reviews fail":   newGuard(noReviews, env.Client, Options{}),
		"reads of objects fail": newGuard(env.Client, noReads, Options{}),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := byAdmin(t.Context(), env.Namespace(t, nil))
			_, ofSettings := (&userSettingsValidator{guard: guard}).ValidateCreate(ctx, settings)
			_, ofConversation := (&conversationValidator{guard: guard}).ValidateCreate(ctx, conversation)
			for kind, err := range map[string]error{"UserSettings": ofSettings, "Conversation": ofConversation} {
				if !apierrors.IsInternalError(err) || strings.Contains(err.Error(), detail) {
					t.Errorf("%s: want an internal error without details, got: %v", kind, err)
				}
			}
		})
	}
}
