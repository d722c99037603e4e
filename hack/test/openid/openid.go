// Package openid contains an OpenID provider for tests. It is a stub: it asks for no password, it
// consents immediately, and its tokens can be invalid on purpose.
package openid

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"
)

// ClientID and CLIClientID are the clients that each issuer knows. ClientSecret is the secret of
// ClientID.
const (
	ClientID     = "parley"
	CLIClientID  = "parley-cli"
	ClientSecret = "secret-of-the-client"
)

// Claims are the claims of an ID token.
type Claims map[string]any

// With returns a copy of the claims in which one claim is set. A nil value removes the claim.
func (c Claims) With(name string, value any) Claims {
	c = maps.Clone(c)
	if c[name] = value; value == nil {
		delete(c, name)
	}
	return c
}

// Issuer is a provider. It serves discovery, keys, authorizations and tokens.
type Issuer struct {
	URL string
	mux *http.ServeMux

	mu  sync.Mutex
	key *key
	// person is the person who signs in at the authorization endpoint.
	person Claims
	codes  map[string]grant
	down   bool
	reads  map[string]int
}

// grant describes an authorization code that was not exchanged yet.
type grant struct {
	claims                        Claims
	client, redirectTo, challenge string
}

type key struct {
	id      string
	private *rsa.PrivateKey
}

// New returns an issuer for a URL. The caller must serve the issuer at this URL.
func New(address string) *Issuer {
	i := &Issuer{URL: address, mux: http.NewServeMux(), codes: map[string]grant{}, reads: map[string]int{}}
	i.Rotate()
	i.mux.HandleFunc("GET /.well-known/openid-configuration", i.discovery)
	i.mux.HandleFunc("GET /keys", i.publicKeys)
	i.mux.HandleFunc("GET /authorize", i.authorize)
	i.mux.HandleFunc("POST /token", i.token)
	return i
}

// Start serves an issuer on loopback until the test ends.
func Start(t testing.TB) *Issuer {
	t.Helper()
	i := New("")
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	i.URL = server.URL
	return i
}

func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	down := i.down
	i.reads[r.URL.Path]++
	i.mu.Unlock()
	if down {
		http.Error(w, "down", http.StatusBadGateway)
		return
	}
	i.mux.ServeHTTP(w, r)
}

// SetDown sets whether the issuer answers every request with an error.
func (i *Issuer) SetDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

// Requests returns the number of requests to a path.
func (i *Issuer) Requests(path string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.reads[path]
}

// Rotate replaces the key.
func (i *Issuer) Rotate() {
	replacement := newKey()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key = replacement
}

// SetPerson chooses the person who signs in at the authorization endpoint.
func (i *Issuer) SetPerson(claims Claims) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.person = claims
}

// Claims returns the claims of a person's ID token. The token is for the client ClientID and is
// valid for an hour.
func (i *Issuer) Claims(email string, groups ...string) Claims {
	now := time.Now()
	return Claims{"iss": i.URL, "aud": ClientID, "sub": email, "email": email, "email_verified": true,
		"groups": append([]string{}, groups...), "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
}

// Token returns a valid token of a person.
func (i *Issuer) Token(email string, groups ...string) string {
	return i.Sign(i.Claims(email, groups...))
}

func (i *Issuer) discovery(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, map[string]any{"issuer": i.URL, "authorization_endpoint": i.URL + "/authorize",
		"token_endpoint": i.URL + "/token", "jwks_uri": i.URL + "/keys", "end_session_endpoint": i.URL + "/end",
		"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"RS256"},
		"code_challenge_methods_supported":      []string{"S256"}})
}

func (i *Issuer) publicKeys(w http.ResponseWriter, _ *http.Request) {
	k := i.current()
	public := k.private.PublicKey
	reply(w, http.StatusOK, map[string]any{"keys": []map[string]string{{"kty": "RSA", "use": "sig", "alg": "RS256",
		"kid": k.id, "n": encode(public.N.Bytes()), "e": encode(big.NewInt(int64(public.E)).Bytes())}}})
}

// authorize signs the chosen person in and redirects the browser to the client.
func (i *Issuer) authorize(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	back, err := url.Parse(query.Get("redirect_uri"))
	if err != nil || query.Get("client_id") != ClientID || query.Get("response_type") != "code" ||
		query.Get("code_challenge_method") != "S256" || query.Get("code_challenge") == "" {
		http.Error(w, "invalid request", http.StatusBadRequest)
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	answer := url.Values{"state": {query.Get("state")}}
	if i.person == nil {
		answer.Set("error", "access_denied")
	} else {
		code := rand.Text()
		claims := i.person
		if _, chosen := claims["nonce"]; !chosen {
			claims = claims.With("nonce", query.Get("nonce"))
		}
		i.codes[code] = grant{claims: claims, client: ClientID, redirectTo: query.Get("redirect_uri"),
			challenge: query.Get("code_challenge")}
		answer.Set("code", code)
	}
	back.RawQuery = answer.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

// token exchanges an authorization code for tokens. Each code works one time.
func (i *Issuer) token(w http.ResponseWriter, r *http.Request) {
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = r.PostFormValue("client_id"), r.PostFormValue("client_secret")
	}
	i.mu.Lock()
	granted, found := i.codes[r.PostFormValue("code")]
	delete(i.codes, r.PostFormValue("code"))
	i.mu.Unlock()
	sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	var refused error
	switch {
	case id != granted.client && found || secret != ClientSecret:
		refused = errors.New("invalid_client")
	case !found || granted.redirectTo != r.PostFormValue("redirect_uri") || granted.challenge != encode(sum[:]):
		refused = errors.New("invalid_grant")
	}
	if refused != nil {
		reply(w, http.StatusBadRequest, map[string]string{"error": refused.Error()})
		return
	}
	reply(w, http.StatusOK, map[string]any{"access_token": rand.Text(), "token_type": "Bearer", "expires_in": 3600,
		"id_token": i.Sign(granted.claims)})
}

func reply(w http.ResponseWriter, code int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text) // fails only if the client is gone
}

func encode(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

func (i *Issuer) current() *key {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.key
}
