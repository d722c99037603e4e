package webhook

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// hollow is a cluster in which there is nothing, and everybody may do everything, or nothing.
type hollow struct {
	client.Client
	allows bool
}

func (h hollow) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	o.(*authorizationv1.SubjectAccessReview).Status.Allowed = h.allows
	return nil
}

func (h hollow) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (h hollow) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// fuzzMark stands in texts that may hold a secret; no refusal and no warning repeats it.
const fuzzMark = "zq9mark"

func fuzzContext(t *testing.T, user string) context.Context {
	return admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Namespace: "default", UserInfo: authenticationv1.UserInfo{Username: user},
	}})
}

// Whatever an object of the three kinds says, it is taken or refused, and a refusal names the field
// and repeats no text that may hold a secret. What is taken is taken again, and keeps what the
// fields promise.
func FuzzObjects(f *testing.F) {
	for _, seed := range []string{
		`{"metadata":{"name":"a"},"spec":{}}`, `{}`, `null`,
		`{"spec":{"userSettingsName":"ada","repository":"o/r","selectedBranch":"main","initialUserMsg":"hello",` +
			`"imageURLs":["https://example.com/a.png","data:image/png;base64,AA=="]}}`,
		`{"spec":{"repository":"https://user:password@example.com/o/r.git","selectedBranch":"..",` +
			`"images":[{"url":"http://"},{"configMapKeyRef":{"name":"c","key":"k"}}]}}`,
		`{"spec":{"suggestedTask":{"repo":"//"},"createMicroagent":{"repo":"a b"},"idleTimeout":"1h",` +
			`"sessionClassName":"big","replayJSONRef":{"name":"r","key":"k"}}}`,
		`{"spec":{"llmBaseURL":"https://example.com?api_key=x","language":"de-DE","email":"a@b","gitUserEmail":"no",` +
			`"agent":"none","sandboxBaseContainerImage":"UPPER:tag","sandboxRuntimeContainerImage":"a/b@sha256:0"}}`,
		`{"spec":{"llmAPIKeyRef":{"name":"s","key":"k"},"sessionKeyRef":{"name":"s","key":"k"},` +
			`"secretsStore":{"providerTokens":[{"provider":"github","host":"a:b","tokenRef":{"name":"t","key":"k"}}],` +
			`"customSecrets":[{"name":"A","secretRef":{"name":"s","key":"k"}}]}}}`,
		`{"spec":{"mcpConfig":{"sseServers":[{"url":"wss://a.example.com:99999"}],"stdioServers":[{"name":"n",` +
			`"command":"c","args":["--api-key=x","--token","y"],"env":[{"name":"A"}]}],"shttpServers":[{"url":"%"}]}}}`,
		`{"spec":{"network":{"caBundle":"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"}}}`,
		`{"spec":{"network":{"caBundle":"-----BEGIN "}}}`,
	} {
		for kind := range byte(3) {
			f.Add([]byte(seed), kind, true, false)
			f.Add([]byte(seed), kind, false, true)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, kind byte, allows, byFacade bool) {
		cluster := hollow{allows: allows}
		g := newGuard(cluster, cluster, Options{FacadeUser: facadeUser, ManagerUser: managerUser})
		ctx := fuzzContext(t, map[bool]string{true: facadeUser, false: "ada"}[byFacade])
		text = markSecrets(text)
		switch kind % 3 {
		case 0:
			fuzzKind(ctx, t, text, &conversationValidator{guard: g}, keepsConversation)
		case 1:
			fuzzKind(ctx, t, text, &userSettingsValidator{guard: g, cache: cluster, namespace: operatorNamespace,
				agents: v1alpha1.AgentCatalogueName}, keepsSettings)
		case 2:
			fuzzKind(ctx, t, text, sessionClassValidator{}, keepsClass)
		}
	})
}

// fuzzKind has an object of a kind created, and then changed from nothing and from itself.
func fuzzKind[K any, O interface {
	*K
	client.Object
}](ctx context.Context, t *testing.T, text []byte, v admission.Validator[O], keeps func(*testing.T, O)) {
	t.Helper()
	object := O(new(K))
	if json.Unmarshal(text, object) != nil {
		return // the API server would not have asked
	}
	judged := func(warnings admission.Warnings, err error) bool {
		for _, warning := range warnings {
			if strings.Contains(warning, fuzzMark) {
				t.Errorf("%s is repeated in the warning %s", text, warning)
			}
		}
		if err == nil {
			return true
		}
		status := (*apierrors.StatusError)(nil)
		if strings.Contains(err.Error(), fuzzMark) {
			t.Errorf("%s is repeated in %v", text, err)
		}
		if !errors.As(err, &status) || !apierrors.IsInvalid(err) || len(status.ErrStatus.Details.Causes) == 0 {
			t.Fatalf("%s is refused without a cause: %v", text, err)
		}
		for _, cause := range status.ErrStatus.Details.Causes {
			if !strings.HasPrefix(cause.Field, "spec") {
				t.Errorf("%s is refused for the field %q: %v", text, cause.Field, err)
			}
		}
		return false
	}
	taken := judged(v.ValidateCreate(ctx, object))
	judged(v.ValidateUpdate(ctx, O(new(K)), object))
	if !judged(v.ValidateUpdate(ctx, object, object)) && taken {
		t.Errorf("%s is taken, and refused when it stays as it is", text)
	}
	judged(v.ValidateDelete(ctx, object))
	if taken {
		keeps(t, object)
	}
}

func keepsConversation(t *testing.T, c *v1alpha1.Conversation) {
	t.Helper()
	keepsTools(t, c.Spec.MCPConfig)
	for _, image := range c.Spec.ImageURLs {
		if u, err := url.Parse(image); err != nil || u.User != nil {
			t.Errorf("the image %q was taken", image)
		}
	}
}

func keepsSettings(t *testing.T, s *v1alpha1.UserSettings) {
	t.Helper()
	keepsTools(t, s.Spec.MCPConfig)
	if base := s.Spec.LLMBaseURL; base != nil {
		keepsURL(t, *base)
	}
}

func keepsClass(t *testing.T, c *v1alpha1.SessionClass) {
	t.Helper()
	if text := c.Spec.CABundle(); strings.Contains(text, "-----BEGIN ") &&
		!x509.NewCertPool().AppendCertsFromPEM([]byte(text)) {
		t.Errorf("the CA bundle %q was taken", text)
	}
}

func keepsTools(t *testing.T, config *v1alpha1.MCPConfig) {
	t.Helper()
	if config == nil {
		return
	}
	for _, server := range append(config.SSEServers, config.SHTTPServers...) {
		keepsURL(t, server.URL)
	}
}

// keepsURL: it can be called, and holds no key.
func keepsURL(t *testing.T, text string) {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Hostname() == "" || u.Query().Has("api_key") || u.Query().Has("token") {
		t.Errorf("the URL %q was taken", text)
	}
}

// markSecrets puts the mark into the texts in which people put keys by mistake.
func markSecrets(text []byte) []byte {
	var value any
	if json.Unmarshal(text, &value) != nil {
		return text
	}
	result, err := json.Marshal(markIn(value, false))
	if err != nil {
		return text
	}
	return result
}

func markIn(value any, secret bool) any {
	switch value := value.(type) {
	case string:
		if secret {
			return value + fuzzMark
		}
	case []any:
		for i := range value {
			value[i] = markIn(value[i], secret)
		}
	case map[string]any:
		for name := range value {
			value[name] = markIn(value[name], name == "args" || name == "url" || name == "llmBaseURL" || name == "imageURLs" ||
				name == "repository")
		}
	}
	return value
}
