package main

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/openid"
)

// organisation is a facade whose users sign in with an OpenID provider.
type organisation struct {
	issuer    *openid.Issuer
	facade    *facadeenv.Facade
	audit     string
	namespace string
	// secret is the file with the client secret.
	secret string
}

func newOrganisation(t *testing.T, args ...string) *organisation {
	t.Helper()
	o := &organisation{issuer: openid.Start(t), audit: filepath.Join(t.TempDir(), "audit.log"),
		namespace: suite.Namespace(t, nil)}
	o.secret = filepath.Join(t.TempDir(), "secret")
	o.writeSecret(t, openid.ClientSecret+"\n")
	o.facade = ownFacade(t, append([]string{"--user-rate=0", "--oidc-issuer-url=" + o.issuer.URL,
		"--oidc-client-id=" + openid.ClientID, "--oidc-cli-client-id=" + openid.CLIClientID,
		"--oidc-client-secret-file=" + o.secret, "--audit-log=" + o.audit, "--namespaces=" + o.namespace}, args...)...)
	return o
}

func (o *organisation) writeSecret(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(o.secret, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// settings() creates a UserSettings with a model. The parameter group may be empty.
func (o *organisation) settings(t *testing.T, name, username, group string) *v1alpha1.UserSettings {
	t.Helper()
	owner := &v1alpha1.SettingsOwner{Username: username}
	if group != "" {
		owner.Group = &group
	}
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: name},
		Spec: v1alpha1.UserSettingsSpec{Owner: owner, LLMModel: ptr.To("ollama/small")}}
	create(t, settings)
	return settings
}

func (o *organisation) bearer(name, token string) *person {
	return &person{url: o.facade.URL, namespace: o.namespace, name: name,
		headers: []string{"Authorization", "Bearer " + token}}
}

// browser returns a client that follows redirects and keeps cookies.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
}

func visit(t *testing.T, client *http.Client, address string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func cookies(t *testing.T, client *http.Client, address string) map[string]string {
	t.Helper()
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, cookie := range client.Jar.Cookies(at) {
		all[cookie.Name] = cookie.Value
	}
	return all
}

// signIn signs a person in with a browser, and returns a client with the cookie.
func (o *organisation) signIn(t *testing.T, name string, claims openid.Claims) *person {
	t.Helper()
	o.issuer.SetPerson(claims)
	client := browser(t)
	if code, body := visit(t, client, o.facade.URL+"/api/signin/oidc?then=/%23/conversations"); code != 200 {
		t.Fatalf("the sign-in is answered with %d %s", code, body)
	}
	return o.withCookie(name, cookies(t, client, o.facade.URL)["parley"])
}

func (o *organisation) withCookie(name, value string) *person {
	return &person{url: o.facade.URL, namespace: o.namespace, name: name,
		headers: []string{"Cookie", "parley=" + value, "Origin", o.facade.URL}}
}

// serviceAccountToken creates a ServiceAccount. It returns a token of this account with the given
// audiences.
func (o *organisation) serviceAccountToken(t *testing.T, name string, audience ...string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: name}}
	if err := suite.Client.Create(context.Background(), account); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audience}}
	if err := suite.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}
