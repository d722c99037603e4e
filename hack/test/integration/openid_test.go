//go:build signin

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

const clientSecret = "the-secret-of-the-client"

// organisation has an OpenID provider, and a manager and a facade that use it. ada is in the group
// red, and bob is in the group blue. Each group has a namespace with a UserSettings object "team".
type organisation struct {
	issuer, facade, audit string
	// teams maps each group to its namespace.
	teams map[string]string
}

func newOrganisation(t *testing.T) *organisation {
	t.Helper()
	facade := facadeenv.FreeAddress()
	o := &organisation{issuer: "http://" + facadeenv.FreeAddress(), facade: "http://" + facade,
		audit: filepath.Join(t.TempDir(), "audit.log"), teams: map[string]string{}}
	o.startProvider(t)
	o.createTeams(t, "red", "blue")
	flags := []string{"--oidc-issuer-url=" + o.issuer, "--oidc-client-id=parley", "--oidc-cli-client-id=parley-cli"}
	onboarding := startOnboarding(t, flags)
	files := t.TempDir()
	for name, content := range map[string][]byte{"secret": []byte(clientSecret + "\n"),
		"ca.crt": suite.WebhookInstallOptions.LocalServingCAData} {
		if err := os.WriteFile(filepath.Join(files, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	running, err := suite.StartFacadeAt(facade, program("facade"), append(flags, "--user-rate=0",
		"--oidc-scopes=openid,email,groups", "--oidc-client-secret-file="+filepath.Join(files, "secret"),
		"--onboarding-url="+onboarding, "--onboarding-ca-file="+filepath.Join(files, "ca.crt"), "--audit-log="+o.audit,
		"--archive=https://"+suite.ArchiveAddress, archiveCA())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = running.Stop()
		if t.Failed() {
			t.Logf("the log of the facade: %s\nand of the manager: %s", running.Log, &suite.manager.log)
		}
	})
	return o
}

// startProvider starts the provider that `make e2e-signin` installs.
func (o *organisation) startProvider(t *testing.T) {
	t.Helper()
	modules := os.Getenv("PARLEY_OPENID")
	if modules == "" {
		t.Fatal("PARLEY_OPENID is not set to a directory with oidc-provider: run make e2e-signin")
	}
	script, err := os.ReadFile("testdata/provider.mjs")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(modules, "provider.mjs") // Node.js loads modules from this directory
	if err := os.WriteFile(file, script, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("node", file)
	command.Env = append(os.Environ(), "ISSUER="+o.issuer, "FACADE="+o.facade, "CLIENT_SECRET="+clientSecret,
		`PEOPLE={"ada": ["red"], "bob": ["blue"]}`)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := cluster.Retry(ctx, 50*time.Millisecond,
		cluster.HTTPProbe(o.issuer+"/.well-known/openid-configuration", nil)); err != nil {
		t.Fatal(err)
	}
}

// set changes the provider: the lifetime of ID tokens, or the people of the organisation.
func (o *organisation) set(t *testing.T, change string) {
	t.Helper()
	response, err := http.Post(o.issuer+"/test/"+change, "", nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", change, err)
	}
	_ = response.Body.Close()
}

// createTeams creates the settings of each team, and the ConfigMap with which people are onboarded.
func (o *organisation) createTeams(t *testing.T, groups ...string) {
	t.Helper()
	entries := []map[string]string{}
	for _, group := range groups {
		namespace := suite.Namespace(t, nil)
		o.teams[group] = namespace
		// No controller deletes the objects in deleted namespaces here, so the test deletes the
		// settings.
		t.Cleanup(func() {
			_ = suite.Client.DeleteAllOf(context.Background(), &v1alpha1.UserSettings{}, client.InNamespace(namespace))
		})
		model := httptest.NewServer(scriptedmodel.New(scriptedmodel.Script{Steps: []scriptedmodel.Step{
			{Text: "Done by " + group + ".", Times: 20}}}))
		t.Cleanup(model.Close)
		named := metav1.ObjectMeta{Namespace: namespace, Name: "team"}
		for _, object := range []client.Object{
			&corev1.Secret{ObjectMeta: named, StringData: map[string]string{"key": "the-key-of-" + group}},
			&v1alpha1.UserSettings{ObjectMeta: named, Spec: v1alpha1.UserSettingsSpec{LLMModel: ptr.To("scripted/model"),
				LLMBaseURL: ptr.To(model.URL), LLMAPIKeyRef: &v1alpha1.SecretKeyRef{Name: "team", Key: "key"}}},
		} {
			if err := suite.Client.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
		entries = append(entries, map[string]string{"group": "oidc:" + group, "namespace": namespace, "inheritFrom": "team"})
	}
	mapping := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "parley-system", Name: v1alpha1.OnboardingName},
		Data: map[string]string{"onboarding.yaml": jsonOf(t, map[string]any{"groups": entries})}}
	if err := suite.Client.Create(t.Context(), mapping); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = suite.Client.Delete(context.Background(), mapping) })
}

// startOnboarding restarts the manager with more flags, and returns the URL of its onboarding
// endpoint.
func startOnboarding(t *testing.T, flags []string) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0") // the webhook's certificate is valid for 127.0.0.1
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	restart := func(args ...string) {
		suite.manager.kill()
		suite.manager.args = args
		if err := suite.manager.start(); err != nil {
			t.Fatal(err)
		}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "parley-system", Name: "parley-webhook-cert"},
		Type: corev1.SecretTypeTLS, Data: map[string][]byte{"ca.crt": suite.WebhookInstallOptions.LocalServingCAData}}
	for _, name := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		file := filepath.Join(suite.WebhookInstallOptions.LocalServingCertDir, name)
		if secret.Data[name], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := suite.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = suite.Client.Delete(context.Background(), secret) })
	restart(append(flags, "--webhook-bind-address="+address)...)
	t.Cleanup(func() { restart() })
	return "https://" + address + "/onboard"
}

// signsIn signs a person in on the provider's pages, which ask for a name and for consent.
func (b *browser) signsIn(name string) {
	b.t.Helper()
	b.enter("input[name=login]", name)
	b.enter("input[name=password]", "any")
	b.press("Sign-in")
	b.press("Continue")
}

func (o *organisation) opensFacade(t *testing.T) *browser {
	t.Helper()
	host, err := url.Parse(o.facade)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, host.Host)
	b.do(chromedp.EmulateViewport(1100, 800), chromedp.Navigate(o.facade+"/"))
	return b
}

func (o *organisation) signedInBrowser(t *testing.T, name string) *browser {
	t.Helper()
	b := o.opensFacade(t)
	b.press("Sign in with your organisation")
	b.signsIn(name)
	b.waitForText("oidc:"+name+"@example.com", "No conversations yet.")
	return b
}

// call sends a request from the page in the browser. It returns the status and the body of the
// response.
func (b *browser) call(method, path, body string) string {
	b.t.Helper()
	call := fmt.Sprintf("fetch(%q, {method: %q, headers: {'Content-Type': 'application/json'}, body: %s})"+
		".then(async (r) => `${r.status} ${(await r.text()).trim()}`)", path, method,
		map[bool]string{true: "undefined", false: jsonOf(b.t, body)}[body == ""])
	answer, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](call, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

func (b *browser) cookies(facade string) (found []*http.Cookie) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		answer, err := cdp.Call(ctx, target, network.GetCookies, network.GetCookiesParams{URLs: []string{facade + "/"}})
		if err != nil {
			return err
		}
		for _, cookie := range answer.Cookies {
			found = append(found, &http.Cookie{Name: cookie.Name, Value: cookie.Value})
		}
		return nil
	}))
	return found
}

func (b *browser) cookie(facade, name string) *http.Cookie {
	b.t.Helper()
	for _, cookie := range b.cookies(facade) {
		if cookie.Name == name {
			return cookie
		}
	}
	b.t.Fatalf("the browser has no cookie %s", name)
	return nil
}

func get(t *testing.T, address string, cookies ...*http.Cookie) (code int, answer map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, cookie := range cookies {
		request.AddCookie(cookie)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	_ = json.NewDecoder(response.Body).Decode(&answer) // a failed sign-in returns HTML, not JSON
	return response.StatusCode, answer
}

func (o *organisation) auditLines(t *testing.T, words ...string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(o.audit)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		all := true
		for _, word := range words {
			all = all && strings.Contains(line, word)
		}
		if all {
			lines = append(lines, line)
		}
	}
	return lines
}
