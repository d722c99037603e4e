package onboarding_test

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/facade/onboarding"
)

func serve(t *testing.T, status int, body string) (server *httptest.Server, caFile string) {
	t.Helper()
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/onboard" || r.Method != http.MethodPost {
			t.Errorf("the manager got %s %s", r.Method, r.URL.Path)
		}
		w.Header().Set("Location", "https://elsewhere.example.com/")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	caFile = filepath.Join(t.TempDir(), "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(caFile, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	return server, caFile
}

func onboard(t *testing.T, address, caFile string) (*onboarding.Result, error) {
	t.Helper()
	client, err := onboarding.New(address, caFile)
	if err != nil {
		t.Fatal(err)
	}
	return client.Onboard(t.Context(), "token-of-ada")
}

func TestTheManagerReturnsTheSettingsOfAPerson(t *testing.T) {
	server, caFile := serve(t, 200, `{"settings": [{"namespace": "red", "name": "ada"}], "problems": ["p"]}`)
	for _, address := range []string{server.URL, server.URL + "/", server.URL + "/onboard"} {
		result, err := onboard(t, address, caFile)
		if err != nil {
			t.Fatal(err)
		}
		if len(result.Settings) != 1 || result.Settings[0].String() != "red/ada" || len(result.Problems) != 1 {
			t.Errorf("the result is %+v", result)
		}
	}
}

func TestTheErrorOfAFailedOnboardingDoesNotContainTheToken(t *testing.T) {
	for name, status := range map[string]int{"refused": 401, "unavailable": 503, "a redirect": 307, "invalid": 200} {
		server, caFile := serve(t, status, "token-of-ada")
		_, err := onboard(t, server.URL, caFile)
		if err == nil || strings.Contains(err.Error(), "token-of-ada") ||
			errors.Is(err, onboarding.ErrRefused) != (status == 401) {
			t.Errorf("%s: %v", name, err)
		}
	}
	server, _ := serve(t, 200, "{}")
	empty := filepath.Join(t.TempDir(), "none")
	for name, caFile := range map[string]string{"no file": empty, "the authorities of the system": ""} {
		if _, err := onboard(t, server.URL, caFile); err == nil {
			t.Errorf("with %s, the manager is trusted", name)
		}
	}
	if _, err := onboarding.New("http://manager.example.com", ""); err == nil {
		t.Error("a token may be sent without TLS")
	}
}
