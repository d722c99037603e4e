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

// emptyCluster is a cluster without objects. If allows is true, every user has all rights;
// otherwise no user has any right.
type emptyCluster struct {
	client.Client
	allows bool
}

func (h emptyCluster) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	o.(*authorizationv1.SubjectAccessReview).Status.Allowed = h.allows
	return nil
}

func (h emptyCluster) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (h emptyCluster) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return nil
}

// fuzzMark marks texts that may hold a secret. No refusal and no warning may contain the mark.
const fuzzMark = "zq9mark"

func fuzzContext(t *testing.T, user string) context.Context {
	return admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Namespace: "default", UserInfo: authenticationv1.UserInfo{Username: user},
	}})
}

// The webhook gets arbitrary objects of the three kinds. It must accept each object or refuse it as
// invalid; any other error fails the test. A refusal names the field and repeats no text that may
// hold a secret. The fields of an accepted object are valid, and an update without a change is
// accepted too.
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
		cluster := emptyCluster{allows: allows}
		g := newGuard(cluster, cluster, Options{FacadeUser: facadeUser, ManagerUser: managerUser})
		agents := agentCatalogue{Namespace: operatorNamespace, Name: v1alpha1.AgentCatalogueName}
		ctx := fuzzContext(t, map[bool]string{true: facadeUser, false: "ada"}[byFacade])
		text = markSecrets(text)
		switch kind % 3 {
		case 0:
			fuzzKind(ctx, t, text, &conversationValidator{guard: g, agents: agents}, verifyConversation)
		case 1:
			fuzzKind(ctx, t, text, &userSettingsValidator{guard: g, cache: cluster, agents: agents}, verifySettings)
		case 2:
			fuzzKind(ctx, t, text, sessionClassValidator{}, verifyClass)
		}
	})
}

func fuzzKind[K any, O interface {
	*K
	client.Object
}](ctx context.Context, t *testing.T, text []byte, v admission.Validator[O], verify func(*testing.T, O)) {
	t.Helper()
	object := O(new(K))
	if json.Unmarshal(text, object) != nil {
		return // the API server would not call the webhook
	}
	accepted := func(warnings admission.Warnings, err error) bool {
		for _, warning := range warnings {
			if strings.Contains(warning, fuzzMark) {
				t.Errorf("%s: the warning repeats the mark: %s", text, warning)
			}
		}
		if err == nil {
			return true
		}
		status := (*apierrors.StatusError)(nil)
		if strings.Contains(err.Error(), fuzzMark) {
			t.Errorf("%s: the error repeats the mark: %v", text, err)
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
	created := accepted(v.ValidateCreate(ctx, object))
	accepted(v.ValidateUpdate(ctx, O(new(K)), object))
	if !accepted(v.ValidateUpdate(ctx, object, object)) && created {
		t.Errorf("%s is accepted, but refused when unchanged", text)
	}
	accepted(v.ValidateDelete(ctx, object))
	if created {
		verify(t, object)
	}
}

func verifyConversation(t *testing.T, c *v1alpha1.Conversation) {
	t.Helper()
	verifyTools(t, c.Spec.MCPConfig)
	for _, image := range c.Spec.ImageURLs {
		if u, err := url.Parse(image); err != nil || u.User != nil {
			t.Errorf("the image %q was accepted", image)
		}
	}
}

func verifySettings(t *testing.T, s *v1alpha1.UserSettings) {
	t.Helper()
	verifyTools(t, s.Spec.MCPConfig)
	if base := s.Spec.LLMBaseURL; base != nil {
		verifyURL(t, *base)
	}
}

func verifyClass(t *testing.T, c *v1alpha1.SessionClass) {
	t.Helper()
	if text := c.Spec.CABundle(); strings.Contains(text, "-----BEGIN ") &&
		!x509.NewCertPool().AppendCertsFromPEM([]byte(text)) {
		t.Errorf("the CA bundle %q was accepted", text)
	}
}

func verifyTools(t *testing.T, config *v1alpha1.MCPConfig) {
	t.Helper()
	if config == nil {
		return
	}
	for _, server := range append(config.SSEServers, config.SHTTPServers...) {
		verifyURL(t, server.URL)
	}
}

func verifyURL(t *testing.T, text string) {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Hostname() == "" || u.Query().Has("api_key") || u.Query().Has("token") {
		t.Errorf("the URL %q was accepted", text)
	}
}

// markSecrets adds fuzzMark to texts in which users may put keys by mistake.
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
