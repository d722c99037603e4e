package auth

import (
	"cmp"
	"crypto/subtle"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	// The cookie of a sign-in flow is named flowPrefix plus the OAuth state, so that a browser can
	// have several flows. The person must sign in within flowLifetime. maxFlows limits these
	// cookies, because proxies limit the headers of a request.
	flowPrefix   = "parley-signin-"
	flowLifetime = 10 * time.Minute
	maxFlows     = 4
	maxThen      = 1 << 10
)

// Flow is an unfinished sign-in with the OpenID provider. A cookie binds the flow to the browser.
type Flow struct {
	// ID is the OAuth state, which the provider returns. The cookie that the person gets after the
	// sign-in has the same ID. A sign-out revokes this ID. A copy of the flow's cookie is then
	// useless, because a sign-in with it would get the revoked ID again.
	ID string `json:"-"`
	// Nonce is returned in the ID token. Verifier proves to the provider that the same facade began
	// the flow (PKCE).
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	// RedirectURI is the URL of the callback. The field Then is the path that the browser opens
	// after the sign-in.
	RedirectURI string `json:"redirect"`
	Then        string `json:"then"`
}

// SetFlow sends the cookie of a flow. The provider sends the browser back with a navigation from
// another site, so the cookie is not SameSite=Strict.
func (c *Cookies) SetFlow(w http.ResponseWriter, r *http.Request, flow Flow) error {
	err := c.send(w, r, flowPrefix+flow.ID, http.SameSiteLaxMode,
		claims{ID: flow.ID, Flow: &flow, Expires: c.now().Add(flowLifetime).Unix()})
	if err == nil {
		c.dropFlows(w, r)
	}
	return err
}

// dropFlows removes invalid cookies of flows. It also removes the oldest cookies, so that at most
// maxFlows remain, including the new cookie.
func (c *Cookies) dropFlows(w http.ResponseWriter, r *http.Request) {
	expiry := map[string]int64{}
	var names []string
	for _, sent := range r.Cookies() {
		if name, is := strings.CutPrefix(sent.Name, c.name(r, "")); is && strings.HasPrefix(name, flowPrefix) {
			names = append(names, name)
			if claimed, valid := c.read(sent.Value); valid {
				expiry[name] = claimed.Expires
			}
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(expiry[a], expiry[b]) })
	for i, name := range names {
		if i <= len(names)-maxFlows || expiry[name] == 0 {
			c.clearFlow(w, r, name)
		}
	}
}

func (c *Cookies) clearFlow(w http.ResponseWriter, r *http.Request, name string) {
	http.SetCookie(w, c.cookie(r, name, http.SameSiteLaxMode, "", -1))
}

// TakeFlow finds the request's cookie for this OAuth state and returns the flow in it. It removes
// the cookie from the browser.
func (c *Cookies) TakeFlow(w http.ResponseWriter, r *http.Request, state string) (*Flow, bool) {
	sent, err := r.Cookie(c.name(r, flowPrefix+state))
	if err != nil {
		return nil, false
	}
	claimed, valid := c.read(sent.Value)
	if !valid || claimed.Flow == nil || subtle.ConstantTimeCompare([]byte(claimed.ID), []byte(state)) != 1 {
		return nil, false
	}
	c.clearFlow(w, r, flowPrefix+state)
	claimed.Flow.ID = claimed.ID
	return claimed.Flow, true
}

// LocalPath reports whether a browser that follows the path stays on the same host. Browsers treat
// a backslash as a slash.
func LocalPath(path string) bool {
	parsed, err := url.Parse(path)
	return err == nil && len(path) <= maxThen && strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") &&
		!strings.Contains(path, `\`) && parsed.Host == "" && parsed.Scheme == ""
}
