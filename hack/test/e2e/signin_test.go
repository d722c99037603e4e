package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/hack/local/parley"
	"github.com/parley-dev/parley/hack/test/openid"
)

// issuerAddress has a port to which Parley's network policies allow connections.
const issuerAddress = nodeAddress + ":16443"

// administrator runs kubectl commands and records them, so that a test can limit their number.
type administrator struct {
	*t
	actions []string
}

func (a *administrator) do(args ...string) {
	a.Helper()
	_, err := a.kubectl(a.ctx, args...)
	a.must(err)
	a.actions = append(a.actions, "kubectl "+strings.Join(args[:min(len(args), 4)], " "))
}

func (a *administrator) apply(name, manifest string) {
	a.Helper()
	a.do("apply", "--filename="+a.write(name+".yaml", manifest))
}

func (a *administrator) write(name, content string) string {
	file := filepath.Join(runDir, "administrator", name)
	a.must(os.MkdirAll(filepath.Dir(file), 0o700))
	a.must(os.WriteFile(file, []byte(content), 0o600))
	return file
}

// issuer serves a stub of an OpenID provider, with a certificate of the cluster's authority.
func (t *t) issuer() (issuer *openid.Issuer, caFile string) {
	listener, err := net.Listen("tcp", issuerAddress)
	t.must(err)
	config, err := t.plane.PKI.ServerTLS()
	t.must(err)
	issuer = openid.New("https://" + issuerAddress)
	server := &httptest.Server{Listener: listener, TLS: config, Config: &http.Server{Handler: issuer}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return issuer, t.plane.PKI.Cert(t.plane.PKI.Authority())
}

// enableSignIn adds the component signin to the installation, as config/samples/signin does.
func (a *administrator) enableSignIn(caFile string) {
	a.do("create", "secret", "generic", "parley-oidc-client", "--namespace="+parleyNamespace,
		"--from-file=clientSecret="+a.write("clientSecret", openid.ClientSecret))
	a.do("create", "configmap", "parley-oidc-ca", "--namespace="+parleyNamespace, "--from-file=ca.crt="+caFile)
	installer, err := os.ReadFile(filepath.Join(a.dist, "install.yaml"))
	a.must(err)
	dir := filepath.Dir(a.write("signin/install.yaml", string(installer)))
	component, err := filepath.Rel(dir, filepath.Join(filepath.Dir(a.chart), "components", "signin"))
	a.must(err)
	a.write("signin/kustomization.yaml", fmt.Sprintf(`
resources: [install.yaml]
components: [%s]
patches:
- patch: |-
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: parley-signin, namespace: parley-system}
    data: {OIDC_ISSUER_URL: "https://%s", OIDC_CA_FILE: /run/parley/oidc-ca/ca.crt}
`, component, issuerAddress))
	a.do("apply", "--server-side", "--kustomize="+dir)
	a.must(a.awaitParley(a.ctx))
}

func (t *t) disableSignIn() {
	t.must(t.installParley(t.ctx))
	for _, object := range []string{"configmap/parley-signin", "configmap/parley-onboarding",
		"configmap/parley-oidc-ca", "secret/parley-oidc-client"} {
		_, err := t.kubectl(t.ctx, "delete", object, "--ignore-not-found", "--namespace="+parleyNamespace)
		t.must(err)
	}
	t.must(t.awaitParley(t.ctx))
}

// bearer is a token. As the Transport of an HTTP client, it adds the token to each request.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Del(rest.KeyHeader)
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func (b bearer) send(ctx context.Context, method, url string, body, into any) error {
	return parley.Send(ctx, &http.Client{Transport: b}, method, url, "", body, into)
}
