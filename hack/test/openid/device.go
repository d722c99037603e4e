package openid

import (
	"crypto/rand"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Device is an issuer with the device flow. A refresh token that is used twice ends the sign-in.
type Device struct {
	*Issuer
	// Overrides replace entries of the published configuration.
	Overrides map[string]any
	// Lifetime is the lifetime of ID tokens.
	Lifetime time.Duration

	mu       sync.Mutex
	approved Claims
	denied   bool
	refresh  string
	grant    Claims
	used     map[string]bool
}

// StartDevice serves an issuer with the device flow on loopback until the test ends.
func StartDevice(t testing.TB) *Device {
	t.Helper()
	d := &Device{Issuer: New(""), Lifetime: time.Hour, used: map[string]bool{}}
	d.mux = http.NewServeMux()
	d.mux.HandleFunc("GET /.well-known/openid-configuration", d.configuration)
	d.mux.HandleFunc("GET /keys", d.publicKeys)
	d.mux.HandleFunc("POST /device", d.device)
	d.mux.HandleFunc("POST /token", d.tokens)
	d.mux.HandleFunc("POST /revoke", d.revoke)
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	d.URL = server.URL
	return d
}

// Approve approves the sign-in of the person with these claims. If the claims are nil, Approve
// refuses the sign-in.
func (d *Device) Approve(claims Claims) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.approved, d.denied = claims, claims == nil
}

// SignedIn reports whether the last refresh token is valid.
func (d *Device) SignedIn() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refresh != ""
}

func (d *Device) configuration(w http.ResponseWriter, _ *http.Request) {
	published := map[string]any{"issuer": d.URL, "authorization_endpoint": d.URL + "/authorize",
		"token_endpoint": d.URL + "/token", "jwks_uri": d.URL + "/keys", "revocation_endpoint": d.URL + "/revoke",
		"device_authorization_endpoint":         d.URL + "/device",
		"id_token_signing_alg_values_supported": []string{"RS256"}}
	for name, value := range d.Overrides {
		published[name] = value
	}
	reply(w, http.StatusOK, published)
}

func (d *Device) device(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("client_id") != CLIClientID {
		reply(w, http.StatusBadRequest, map[string]string{"error": "invalid_client"})
		return
	}
	reply(w, http.StatusOK, map[string]any{"device_code": "the-device-code", "user_code": "WDJB-MJHT", "interval": 1,
		"verification_uri": d.URL + "/enter", "expires_in": 600})
}

func (d *Device) tokens(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	given, refused := r.PostFormValue("refresh_token"), ""
	switch r.PostFormValue("grant_type") {
	case "urn:ietf:params:oauth:grant-type:device_code":
		d.grant = d.approved
		switch {
		case d.denied:
			refused = "access_denied"
		case d.approved == nil:
			refused = "authorization_pending"
		}
	case "refresh_token":
		if d.used[given] {
			d.refresh = ""
		}
		if d.used[given] || given != d.refresh {
			refused = "invalid_grant"
		}
	default:
		refused = "unsupported_grant_type"
	}
	if refused != "" {
		reply(w, http.StatusBadRequest, map[string]string{"error": refused})
		return
	}
	d.used[given], d.refresh = given != "", rand.Text()
	claims := d.grant.With("aud", CLIClientID).With("exp", time.Now().Add(d.Lifetime).Unix())
	reply(w, http.StatusOK, map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 3600,
		"refresh_token": d.refresh, "id_token": d.Sign(claims)})
}

func (d *Device) revoke(_ http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.PostFormValue("token") == d.refresh {
		d.refresh = ""
	}
}
