package integration_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// trustingClient returns a client that trusts only the manager's authority. The server's
// certificate must be valid for the given name or, if the name is empty, for the URL's host.
func trustingClient(t *testing.T, name string) *http.Client {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(suite.SigningKeyDir, session.AuthorityCertificates))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}}}
}

func TestSessionsGetTheAuthorityOfTheArchivesCertificate(t *testing.T) {
	t.Parallel()
	response, err := http.Get("https://" + suite.ArchiveAddress)
	if err == nil {
		_ = response.Body.Close()
		t.Error("the archive's certificate is of a public authority")
	}
	ada := newPerson(t, nil)
	ada.converse(t, "talk", nil)
	secret := &corev1.Secret{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: v1alpha1.SessionName("talk")},
		secret); err != nil {
		t.Fatal(err)
	}
	doc := decode[session.Document](t, string(secret.Data[session.DocumentFile]))
	if doc.ArchiveURL != "https://"+suite.ArchiveAddress || doc.ArchiveCA == "" {
		t.Errorf("the session sends its token to %s, with authorities of %d bytes", doc.ArchiveURL, len(doc.ArchiveCA))
	}
}

// The facade sends tokens to the URL in the status of the Conversation. Only the manager can write
// this URL, and it must write an https URL.
func TestASessionAcceptsTokensOverTLSOnly(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil)
	ada.converse(t, "talk", nil)
	c := ada.conversation(t, "talk")
	if !strings.HasPrefix(c.Status.URL, "https://") {
		t.Errorf("the session is at %s", c.Status.URL)
	}
	for name, test := range map[string]struct {
		scheme, name, path string
		want               int
	}{
		"over TLS":                   {"https", string(c.UID), session.FilesPath, http.StatusOK},
		"under another session's ID": {"https", "9d1f0f0e-1f6b-4d5a-9b0b-6f3f2d1c0a00", session.FilesPath, 0},
		"in clear text":              {"http", "", session.FilesPath, http.StatusUnauthorized},
		"a probe in clear text":      {"http", "", session.ReadyPath, http.StatusOK},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s://%s:%d%s", test.scheme,
			c.Status.PodIP, session.Port, test.path), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(session.TokenHeader, tokenFor(t, string(c.UID)))
		code := 0
		if response, err := trustingClient(t, test.name).Do(request); err == nil {
			code = response.StatusCode
			_ = response.Body.Close()
		}
		if code != test.want {
			t.Errorf("%s: answered %d, want %d", name, code, test.want)
		}
	}
}
