package live

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/controllers/objects"
)

// certified returns the manager's keys and a certificate for the session of a Conversation.
func certified(t *testing.T, uid types.UID) (keys map[string][]byte, certificate tls.Certificate) {
	t.Helper()
	signing, c := &corev1.Secret{}, &v1alpha1.Conversation{}
	c.UID = uid
	if _, err := objects.CompleteSigningSecret(signing, "", time.Now()); err != nil {
		t.Fatal(err)
	}
	authority, err := objects.ParseAuthority(signing.Data)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := objects.Secret(c, objects.SecretInputs{Document: session.Document{UID: string(uid)},
		Authority: authority}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	text := secret.Data[session.ServerCertificateFile]
	if certificate, err = tls.X509KeyPair(text, text); err != nil {
		t.Fatal(err)
	}
	return signing.Data, certificate
}

// The address of an ended session may be reused by another pod, and an attacker may respond in
// place of a session.
func TestRequestsAndTokensAreSentOnlyToTheRightSession(t *testing.T) {
	t.Parallel()
	keys, right := certified(t, "u")
	_, foreign := certified(t, "u") // a certificate of another authority
	dir := t.TempDir()
	for _, name := range []string{session.SigningPrivateKey, session.AuthorityCertificates} {
		if err := os.WriteFile(filepath.Join(dir, name), keys[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		certificates []tls.Certificate
		uid          types.UID
		want         int
	}{
		"its session":                      {[]tls.Certificate{right}, "u", http.StatusOK},
		"another session":                  {[]tls.Certificate{right}, "v", http.StatusServiceUnavailable},
		"a certificate of another cluster": {[]tls.Certificate{foreign}, "u", http.StatusServiceUnavailable},
		"clear text":                       {nil, "u", http.StatusServiceUnavailable},
	} {
		called := false
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			called = true
			_, _ = io.WriteString(w, "{}")
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes
		if test.certificates == nil {
			server.Start()
		} else {
			server.TLS = &tls.Config{Certificates: test.certificates}
			server.StartTLS()
		}
		s, c := NewSessions(NewSigner(dir)), &v1alpha1.Conversation{}
		s.port = server.Listener.Addr().(*net.TCPAddr).Port
		c.UID, c.Status.State, c.Status.PodIP = test.uid, v1alpha1.StateRunning, "127.0.0.1"
		c.Status.URL = "https://c.sessions.ns.svc:8080"
		code := http.StatusOK
		if _, err := s.Read(t.Context(), c, Call{Method: http.MethodGet, Path: "/"}, 100); err != nil {
			code = answer.CodeOf(err)
		}
		if code != test.want || called != (test.want == http.StatusOK) {
			t.Errorf("%s: answered %d, called: %t", name, code, called)
		}
		server.CloseClientConnections()
		server.Close()
	}
}
