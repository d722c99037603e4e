package main_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// authority signs certificates and is not in any trust store.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	template.Subject.CommonName = "the company's own"
	var der []byte
	der, a.key = sign(t, template, template, nil)
	var err error
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// sign creates a key and a certificate for this key. Without a signer, the certificate is
// self-signed.
func sign(t *testing.T, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (der []byte,
	key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = key
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer); err != nil {
		t.Fatal(err)
	}
	return der, key
}

func (a *authority) serve(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	der, key := sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.certificate, a.key)
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// gitServer serves the repository at /site.
func (a *authority) gitServer(t *testing.T) string {
	t.Helper()
	libexec, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Dir(strings.TrimPrefix(repository(t), "file://"))
	return a.serve(t, &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(libexec)), "git-http-backend"),
		Env: []string{
			"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + root,
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		},
	}) + "/site/.git"
}

func (a *authority) toolServer(t *testing.T) string {
	t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "private", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "hello"}, func(context.Context, *mcp.CallToolRequest,
		struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello"}}}, nil, nil
	})
	return a.serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
}

// clients is a script that fetches $URL with each of these programs. It skips a program that is not
// installed.
const clients = `cd "$PARLEY_WORKSPACE"
	try() { ! command -v $1 > /dev/null || "$@" > out 2>&1 || { echo "$1: $(cat out)" >> failed; }; }
	try git -c credential.helper= ls-remote "$URL"
	try curl -sS -o /dev/null "$URL/HEAD"
	try python3 -c 'import os, urllib.request; urllib.request.urlopen(os.environ["URL"] + "/HEAD")'
	try node -e 'require("https").get(process.env.URL + "/HEAD").on("error", e => { console.log(e.message); ` +
	`process.exit(1) }).on("response", r => r.resume())'
	touch tried; while true; do sleep 0.01; done`

func (p *pod) failedClients(t *testing.T) string {
	t.Helper()
	eventually(t, "every program was tried", func() bool {
		_, err := os.Stat(filepath.Join(p.workspace, "tried"))
		return err == nil
	})
	failed, err := os.ReadFile(filepath.Join(p.workspace, "failed"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(failed)
}

func TestASessionTrustsTheAuthoritiesOfItsClass(t *testing.T) {
	company := newAuthority(t)
	site := company.gitServer(t)
	p := newPod(t, session.Document{
		Repository: &session.Repository{Name: site}, CABundle: company.pem, FirstMessage: "go", Agent: agent(clients),
		ToolServers: session.ToolServers{SHTTP: []session.RemoteServer{{URL: company.toolServer(t)}}},
	})
	p.image = []string{"URL=" + site, "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1", "GIT_TERMINAL_PROMPT=0"}
	p.start(t)
	p.waitReady(t)
	got := p.status(t)
	if len(got.Workspace.Commit) != 40 {
		t.Errorf("the workspace is %+v", got.Workspace)
	}
	if server := got.ToolServers[0]; server.State != session.ToolServerConnected || server.Tools != 1 {
		t.Errorf("the tool server is %+v", server)
	}
	if failed := p.failedClients(t); failed != "" {
		t.Errorf("failed:\n%s", failed)
	}
}

func TestASessionDoesNotTrustAnUnknownAuthority(t *testing.T) {
	company, other := newAuthority(t), newAuthority(t)
	t.Run("clones fail", func(t *testing.T) {
		p := newPod(t, session.Document{Repository: &session.Repository{Name: company.gitServer(t)}, CABundle: other.pem})
		p.start(t)
		code, got := p.wait(t)
		if code != 0 || got.Reason != v1alpha1.ReasonFailed || !strings.Contains(got.Message, "authority") ||
			!strings.Contains(got.Message, "caBundle") {
			t.Errorf("it ended with status %d: %+v", code, got)
		}
	})
	t.Run("tool servers and the agent's programs fail", func(t *testing.T) {
		site := company.gitServer(t)
		p := newPod(t, session.Document{
			FirstMessage: "go", Agent: agent(clients),
			ToolServers: session.ToolServers{SHTTP: []session.RemoteServer{{URL: company.toolServer(t)}}},
		})
		p.image = []string{"URL=" + site, "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1", "GIT_TERMINAL_PROMPT=0"}
		p.start(t)
		eventually(t, "the tool server was refused", func() bool {
			if code, _ := p.get(t, session.AlivePath); code != http.StatusOK {
				return false
			}
			servers := p.status(t).ToolServers
			return len(servers) == 1 && strings.Contains(servers[0].Error, "unknown authority")
		})
		failed := p.failedClients(t)
		for _, client := range []string{"git", "curl", "python3", "node"} {
			if _, err := exec.LookPath(client); err == nil && !strings.Contains(failed, client+": ") {
				t.Errorf("%s does trust it; failed:\n%s", client, failed)
			}
		}
	})
}

func TestAnEmptyCABundleEndsTheSession(t *testing.T) {
	p := newPod(t, session.Document{CABundle: "nothing"})
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonFailed || !strings.Contains(got.Message,
		"CA bundle") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}
