package login

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/hack/test/openid"
)

const facade = "https://parley.example.com"

func loginAt(issuer string) *Login {
	return &Login{Facade: facade, Issuer: issuer, ClientID: openid.CLIClientID,
		Scopes: WithOfflineAccess([]string{"openid", "email"})}
}

// signIn returns a store with a login. If issuer.Lifetime is shorter than expiryMargin, the ID
// token of the login counts as expired.
func signIn(t *testing.T, issuer *openid.Device) *Store {
	t.Helper()
	issuer.Approve(issuer.Claims("ada@example.com"))
	l, store := loginAt(issuer.URL), &Store{filepath.Join(t.TempDir(), "parley")}
	if err := l.SignIn(t.Context(), func(string, string, string) {}); err != nil {
		t.Fatal(err)
	}
	if err := store.Save(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	return store
}

func TestTheDeviceFlowSignsAPersonIn(t *testing.T) {
	issuer := openid.StartDevice(t)
	l := loginAt(issuer.URL)
	err := l.SignIn(t.Context(), func(page, code, _ string) {
		if page != issuer.URL+"/enter" || code != "WDJB-MJHT" {
			t.Errorf("the person is sent to %s with %s", page, code)
		}
		issuer.Approve(issuer.Claims("ada@example.com"))
	})
	if err != nil || l.Subject != "ada@example.com" || l.IDToken == "" || l.RefreshToken == "" {
		t.Errorf("%v: the subject is %s", err, l.Subject)
	}
}

func TestARefusedSignInStoresNothing(t *testing.T) {
	issuer := openid.StartDevice(t)
	issuer.Approve(nil)
	l := loginAt(issuer.URL)
	if err := l.SignIn(t.Context(), func(string, string, string) {}); err == nil ||
		!strings.Contains(err.Error(), "access_denied") || l.IDToken != "" {
		t.Errorf("answered %v", err)
	}
}

func TestTokensAreSentOverHTTPSOnly(t *testing.T) {
	for address, want := range map[string]bool{
		"https://id.example.com": true, "http://127.0.0.1:5": true, "http://localhost": true, "http://[::1]:5": true,
		"http://id.example.com": false, "http://127.0.0.1.example.com": false, "https://user:word@id.example.com": false,
		"https://": false, "file:///etc": false, "": false,
	} {
		if Secure(address) != want {
			t.Errorf("%q is secure: %v", address, !want)
		}
	}
	for _, endpoint := range []string{"device_authorization_endpoint", "token_endpoint", "revocation_endpoint"} {
		issuer := openid.StartDevice(t)
		issuer.Overrides = map[string]any{endpoint: "http://id.example.com/x"}
		issuer.Approve(issuer.Claims("ada@example.com"))
		err := loginAt(issuer.URL).SignIn(t.Context(), func(string, string, string) {})
		if err == nil || !strings.Contains(err.Error(), "without https") || issuer.Requests("/token") > 0 {
			t.Errorf("%s: answered %v", endpoint, err)
		}
	}
}

func TestOnlyTheUserCanReadTheLoginFile(t *testing.T) {
	store := signIn(t, openid.StartDevice(t))
	if err := os.Chmod(store.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := store.Choose(t.Context(), facade, "red/ada"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(store.dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v: the files are %v", err, entries)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, %v", entry.Name(), info.Mode(), err)
		}
	}
	if info, err := os.Stat(store.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has the mode %v, %v", info.Mode(), err)
	}
	if l, err := store.Load(facade); err != nil || l.Settings != "red/ada" || l.IDToken == "" {
		t.Errorf("the choice is %s, %v", l.Settings, err)
	}
	if l, err := store.Load("https://other.example.com"); err != nil || l != nil {
		t.Errorf("another facade has %v, %v", l, err)
	}
}

// The provider ends a sign-in when a refresh token is used twice.
func TestSimultaneousCommandsRefreshTheTokenOneTime(t *testing.T) {
	issuer := openid.StartDevice(t)
	issuer.Lifetime = time.Second
	store := signIn(t, issuer)
	issuer.Lifetime = time.Hour
	before := issuer.Requests("/token")
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if token, err := store.Token(t.Context(), facade); err != nil || token == "" {
				t.Errorf("no token: %v", err)
			}
		})
	}
	all.Wait()
	if refreshed := issuer.Requests("/token") - before; refreshed != 1 || !issuer.SignedIn() {
		t.Errorf("the token was refreshed %d times", refreshed)
	}
}

func TestALoginLastsAsLongAsTheProviderAllows(t *testing.T) {
	issuer := openid.StartDevice(t)
	issuer.Lifetime = time.Second
	store := signIn(t, issuer)
	for range 3 { // each refresh uses the refresh token of the previous refresh
		if _, err := store.Token(t.Context(), facade); err != nil {
			t.Fatal(err)
		}
	}
	issuer.SetDown(true)
	if _, err := store.Token(t.Context(), facade); err == nil || errors.Is(err, errEnded) {
		t.Errorf("without the provider: %v", err)
	}
	issuer.SetDown(false)
	issuer.Overrides = map[string]any{"jwks_uri": issuer.URL + "/nowhere"} // the new ID token cannot be verified
	if _, err := store.Token(t.Context(), facade); err == nil || errors.Is(err, errEnded) {
		t.Errorf("without the provider's keys: %v", err)
	}
	issuer.Overrides = nil
	if _, err := store.Token(t.Context(), facade); err != nil {
		t.Errorf("after an outage of the provider: %v", err)
	}
	l, err := store.Load(facade)
	if err != nil {
		t.Fatal(err)
	}
	if revoked, err := l.Revoke(t.Context()); !revoked || err != nil || issuer.SignedIn() {
		t.Errorf("revoked %v, %v", revoked, err)
	}
	_, err = store.Token(t.Context(), facade)
	if !errors.Is(err, errEnded) || strings.Contains(err.Error(), l.RefreshToken) {
		t.Errorf("after the revocation: %v", err)
	}
}

func TestARefreshedTokenOfAnotherPersonIsRefused(t *testing.T) {
	issuer := openid.StartDevice(t)
	issuer.Lifetime = time.Second
	store := signIn(t, issuer)
	l, err := store.Load(facade)
	if err != nil {
		t.Fatal(err)
	}
	l.Subject = "eve@example.com"
	if err := store.Save(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Token(t.Context(), facade); err == nil || !strings.Contains(err.Error(), "another person") {
		t.Errorf("answered %v", err)
	}
}

func TestADamagedLoginCanBeRemoved(t *testing.T) {
	store := signIn(t, openid.StartDevice(t))
	if err := os.WriteFile(store.path(facade, ".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Token(t.Context(), facade); err == nil || !strings.Contains(err.Error(), "login again") {
		t.Errorf("answered %v", err)
	}
	if l, err := store.Remove(t.Context(), facade); l != nil || err != nil {
		t.Errorf("removed %v, %v", l, err)
	}
	if l, err := store.Load(facade); l != nil || err != nil {
		t.Errorf("it has %v, %v", l, err)
	}
}
