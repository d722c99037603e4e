package auth

import (
	"crypto/subtle"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// flowName is the name of the cookie of a sign-in that has begun. flowLifetime is the time in which
	// the person must sign in at the provider.
	flowName     = "parley-signin"
	flowLifetime = 10 * time.Minute
	maxThen      = 1 << 10
)

// Flow is a sign-in with the OpenID provider that has begun. Its cookie binds it to the browser.
type Flow struct {
	// ID is the state that the provider returns. It becomes the ID of the person's cookie, so that
	// revoking the cookie also revokes copies of the flow.
	ID string `json:"-"`
	// Nonce is returned in the ID token. Verifier proves to the provider that the same facade began the
	// flow (PKCE).
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	// RedirectURI is the callback. Then is the path that the page shows after the sign-in.
	RedirectURI string `json:"redirect"`
	Then        string `json:"then"`
}

// SetFlow sends the cookie of a flow. The provider sends the browser back with a navigation from
// another site, so the cookie is not SameSite=Strict.
func (c *Cookies) SetFlow(w http.ResponseWriter, r *http.Request, flow Flow) error {
	return c.send(w, r, flowName, http.SameSiteLaxMode,
		claims{ID: flow.ID, Flow: &flow, Expires: c.now().Add(flowLifetime).Unix()})
}

// TakeFlow returns the flow of a request's cookie if it has this state, and removes the cookie from
// the browser.
func (c *Cookies) TakeFlow(w http.ResponseWriter, r *http.Request, state string) (*Flow, bool) {
	sent, err := r.Cookie(c.name(r, flowName))
	if err != nil {
		return nil, false
	}
	http.SetCookie(w, c.cookie(r, flowName, http.SameSiteLaxMode, "", -1))
	claimed, valid := c.read(sent.Value)
	if !valid || claimed.Flow == nil || subtle.ConstantTimeCompare([]byte(claimed.ID), []byte(state)) != 1 {
		return nil, false
	}
	claimed.Flow.ID = claimed.ID
	return claimed.Flow, true
}

// LocalPath reports whether a browser that follows the path stays on the same host. Browsers treat a
// backslash as a slash.
func LocalPath(path string) bool {
	parsed, err := url.Parse(path)
	return err == nil && len(path) <= maxThen && strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") &&
		!strings.Contains(path, `\`) && parsed.Host == "" && parsed.Scheme == ""
}
