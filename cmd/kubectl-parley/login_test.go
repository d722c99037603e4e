package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/hack/test/openid"
)

// personFacade is a stub of the facade. It has one person, who owns two UserSettings, and accepts
// every token and key.
type personFacade struct {
	*httptest.Server
	issuer *openid.Device

	mu       sync.Mutex
	requests []*http.Request
}

func newPersonFacade(t *testing.T) *personFacade {
	t.Helper()
	f := &personFacade{issuer: openid.StartDevice(t)}
	f.issuer.Approve(f.issuer.Claims("ada@example.com", "red", "blue"))
	mux := http.NewServeMux()
	answer := func(pattern, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			f.requests = append(f.requests, r)
			f.mu.Unlock()
			if r.Header.Get("Authorization") == "" && r.Header.Get(rest.KeyHeader) == "" &&
				r.URL.Path != "/api/signin/options" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, _ = io.WriteString(w, body)
		})
	}
	answer("GET /api/signin/options", fmt.Sprintf(`{"oidc": {"issuer": %q, "cli_client_id": %q, "scopes": ["openid",
		"email"]}}`, f.issuer.URL, openid.CLIClientID))
	answer("GET /api/session", `{"user": null, "person": "oidc:ada@example.com", "settings": [{"namespace": "red",
		"name": "ada"}, {"namespace": "blue", "name": "ada"}]}`)
	answer("POST /api/conversations", `{"status": "ok", "conversation_id": "fix"}`)
	answer("POST /api/conversations/fix/stop", `{}`)
	answer("GET /api/conversations", `{"results": [{"conversation_id": "fix", "status": "RUNNING", "reason": "Running"}]}`)
	answer("GET /api/conversations/fix", `{"conversation_id": "fix", "status": "RUNNING", "reason": "Running"}`)
	answer("GET /api/conversations/missing", `null`)
	answer("GET /api/conversations/fix/git/patch", "+one\n")
	mux.HandleFunc("GET /api/conversations/several/git/patch", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"detail": "Choose", "settings": [{"namespace": "red", "name": "ada"}]}`)
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *personFacade) last(t *testing.T, path string) *http.Request {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.requests) - 1; i >= 0; i-- {
		if f.requests[i].URL.Path == path {
			return f.requests[i]
		}
	}
	t.Fatalf("the facade received no request for %s", path)
	return nil
}

// noCluster is a kubeconfig of a cluster that does not exist: commands that use it fail.
func noCluster(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context":
		{"cluster": "x"}}], "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// asPerson runs a command that can reach this facade but no cluster. If the command prints a token,
// the test fails.
func (f *personFacade) asPerson(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	r := runAsync(t, noCluster(t), "default", append(args, "--facade="+f.URL)...)
	err = r.wait(t)
	output = r.out.String() + r.errOut.String()
	if strings.Contains(output+fmt.Sprint(err), "eyJ") {
		t.Errorf("%v prints a token: %s %v", args, output, err)
	}
	return output, err
}

func TestAPersonSignsInWithoutRightsInKubernetes(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	f := newPersonFacade(t)
	if _, err := f.asPerson(t, "whoami"); err == nil || !strings.Contains(err.Error(), "kubectl parley login") {
		t.Errorf("before the login: %v", err)
	}
	out, err := f.asPerson(t, "login")
	if err != nil || strings.Index(out, "Signing in at "+f.issuer.URL) > strings.Index(out, "WDJB-MJHT") ||
		!strings.Contains(out, f.issuer.URL+"/enter") || !strings.Contains(out, "oidc:ada@example.com\n  red/ada\n") {
		t.Fatalf("login: %v, %s", err, out)
	}
	if _, err := f.asPerson(t, "diff", "several"); err == nil || !strings.Contains(err.Error(), "--settings") ||
		!strings.Contains(err.Error(), "red/ada") {
		t.Errorf("without a choice: %v", err)
	}
	if _, err := f.asPerson(t, "whoami", "--settings=green/ada"); err == nil || !strings.Contains(err.Error(), "red/ada") {
		t.Errorf("foreign settings: %v", err)
	}
	if out, err := f.asPerson(t, "whoami", "--settings=blue/ada"); err != nil || !strings.Contains(out, "* blue/ada\n") {
		t.Errorf("whoami: %v, %s", err, out)
	}
	if out, err := f.asPerson(t, "start", "fix", "--message=Fix it"); err != nil || !strings.Contains(out, "started") {
		t.Errorf("start: %v, %s", err, out)
	}
	created := f.last(t, "/api/conversations")
	if created.Header.Get(rest.SettingsHeader) != "blue/ada" || !strings.HasPrefix(created.Header.Get("Authorization"),
		"Bearer eyJ") || created.Header.Get(rest.KeyHeader) != "" {
		t.Errorf("the start used %s", created.Header.Get(rest.SettingsHeader))
	}
	for want, args := range map[string][]string{"+one": {"diff", "fix"}, "fix  RUNNING": {"status"},
		f.URL + "/#/c/fix": {"open", "fix"}, "RUNNING Running": {"status", "fix", "--settings=red/ada"}} {
		if out, err := f.asPerson(t, args...); err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
	for _, args := range [][]string{{"diff", "fix", "--settings=ada"}, {"start", "fix", "--class=large"},
		{"status", "missing"}} {
		if out, err := f.asPerson(t, args...); err == nil {
			t.Errorf("%v is accepted: %s", args, out)
		}
	}
	if out, err := f.asPerson(t, "logout"); err != nil || !strings.Contains(out, "Signed out.") || f.issuer.SignedIn() {
		t.Errorf("logout: %v, %s", err, out)
	}
	if _, err := f.asPerson(t, "whoami"); err == nil {
		t.Error("the login works after the logout")
	}
}

func TestKeysAndTokensInTheEnvironmentArePreferredToALogin(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	f := newPersonFacade(t)
	if out, err := f.asPerson(t, "login", "--settings=red/ada"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv(tokenVariable, "pipeline-token\n")
	if out, err := f.asPerson(t, "diff", "fix"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := f.last(t, "/api/conversations/fix/git/patch").Header; got.Get("Authorization") != "Bearer pipeline-token" ||
		got.Get(rest.SettingsHeader) != "" {
		t.Errorf("with $%s: %q", tokenVariable, got.Get(rest.SettingsHeader))
	}
	t.Setenv(keyVariable, "the-key")
	if out, err := f.asPerson(t, "whoami"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := f.last(t, "/api/session").Header; got.Get(rest.KeyHeader) != "the-key" || got.Get("Authorization") != "" {
		t.Errorf("with $%s: a bearer token is sent", keyVariable)
	}
}

func TestAnExpiredLoginIsRefreshedByTheNextCommand(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	f := newPersonFacade(t)
	f.issuer.Lifetime = time.Second
	if out, err := f.asPerson(t, "login", "--settings=red/ada"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	first := f.last(t, "/api/session").Header.Get("Authorization")
	f.issuer.Lifetime = time.Hour
	if out, err := f.asPerson(t, "diff", "fix"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if f.last(t, "/api/conversations/fix/git/patch").Header.Get("Authorization") == first {
		t.Error("the expired token was sent")
	}
}

func TestLoginSaysWhyItCannotSignIn(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for want, options := range map[string]any{
		"no OpenID provider":   map[string]any{"oidc": nil},
		"--oidc-cli-client-id": map[string]any{"oidc": map[string]any{"issuer": "https://id.example.com"}},
		"not an https URL": map[string]any{"oidc": map[string]any{"issuer": "http://id.example.com",
			"cli_client_id": "parley-cli"}},
	} {
		facade := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(options)
		}))
		t.Cleanup(facade.Close)
		_, _, err := run(t, "default", "login", "--facade="+facade.URL)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
	for _, args := range [][]string{{"login"}, {"login", "--facade=http://parley.example.com"}, {"logout"}, {"whoami"}} {
		t.Setenv("PARLEY_FACADE", "")
		if _, _, err := run(t, "default", args...); err == nil || !strings.Contains(err.Error(), "--facade") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
