// Package gitproxy forwards requests from the agent's git to the host of the session's repository.
// It adds the token for this host, so the agent does not need the token.
package gitproxy

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// Prefix is the proxy's path on the loopback address. The name of the git host follows it.
	Prefix = "/git/"
	// Header is the request header with the proxy's secret. Other containers of the pod share the
	// loopback address, but they do not know the secret.
	Header = "Parley-Git"
	// maxText bounds the response bodies that the proxy reads and changes, which are errors and LFS
	// batch responses.
	maxText = 8 << 20
)

// Options configure a Proxy.
type Options struct {
	// Remote is the session's repository. Token is the token for its host.
	Remote *workspace.Remote
	Token  string
	// Mask masks the session's secrets in responses, which may repeat the token.
	Mask func(string) string
	// Busy is called for each request, and done is called after the response.
	Busy func() (done func())
}

// Proxy forwards git and LFS requests to one host and adds the token.
type Proxy struct {
	options Options
	origin  url.URL
	secret  string
	local   string // the URL that replaces the origin; set by At
	forward *httputil.ReverseProxy
}

// New returns the proxy for a session's repository, or nil if there is no token for its host.
func New(options Options) *Proxy {
	remote := options.Remote
	if remote == nil || remote.User == "" || options.Token == "" {
		return nil
	}
	p := &Proxy{options: options, origin: url.URL{Scheme: remote.URL.Scheme, Host: remote.URL.Host},
		secret: rand.Text()}
	p.forward = &httputil.ReverseProxy{
		// ReverseProxy follows no redirects, so the token never reaches a redirect's target.
		Transport: http.DefaultTransport.(*http.Transport).Clone(), FlushInterval: -1,
		Rewrite: p.rewrite, ModifyResponse: p.clean,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			refuse(w, http.StatusBadGateway, "the git host "+p.origin.Host+" cannot be reached")
		},
	}
	return p
}

// At sets the root URL of the loopback server. It returns an address and a header for git's
// configuration. The address replaces the scheme and host of the git host's URLs. git must send the
// header with each request to the address.
func (p *Proxy) At(root string) (address, header string) {
	if p == nil {
		return "", ""
	}
	p.local = root + Prefix + p.origin.Host
	return p.local + "/", Header + ": " + p.secret
}

// ServeHTTP forwards requests from git and git-lfs. It refuses all other requests.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p == nil {
		refuse(w, http.StatusNotFound, "the session has no repository, or no token for its git host")
		return
	}
	// Both hashes have the same length, so the duration of the comparison reveals nothing about the
	// secret.
	got, want := sha256.Sum256([]byte(r.Header.Get(Header))), sha256.Sum256([]byte(p.secret))
	path, own := strings.CutPrefix(r.URL.Path, Prefix+p.origin.Host+"/")
	switch {
	case subtle.ConstantTimeCompare(got[:], want[:]) != 1:
		refuse(w, http.StatusForbidden, "only the git program of the session may use this address: each request needs "+
			"the header in ~/.gitconfig")
	case !own:
		refuse(w, http.StatusNotFound, "the session has a token for "+p.origin.Host+" only")
	case r.URL.RawPath != "" || !allowed(r.Method, path, r.URL.Query()):
		refuse(w, http.StatusForbidden, "only requests of git and git-lfs are forwarded")
	default:
		defer p.options.Busy()()
		p.forward.ServeHTTP(w, r)
	}
}

// forwardedHeaders are the request headers that the proxy forwards to the host.
var forwardedHeaders = []string{"Accept", "Accept-Encoding", "Accept-Language", "Content-Encoding", "Content-Type",
	"Git-Protocol", "Range", "User-Agent"}

func (p *Proxy) rewrite(r *httputil.ProxyRequest) {
	path := strings.TrimPrefix(r.In.URL.Path, Prefix+p.origin.Host)
	r.Out.URL = &url.URL{Scheme: p.origin.Scheme, Host: p.origin.Host, Path: path, RawQuery: r.In.URL.RawQuery}
	r.Out.Host = p.origin.Host
	r.Out.Header = pick(r.In.Header, forwardedHeaders)
	if isLFS(path) {
		r.Out.Header.Del("Accept-Encoding") // the transport then requests gzip itself and decodes it
	}
	r.Out.SetBasicAuth(p.options.Remote.Credentials(p.options.Token))
}

// received is the list of response headers that the proxy forwards to git. Set-Cookie is missing,
// because cookies are credentials. WWW-Authenticate is missing, because git would ask the agent for
// a password.
var received = []string{"Accept-Ranges", "Cache-Control", "Content-Encoding", "Content-Length", "Content-Range",
	"Content-Type", "Location", "Retry-After"}

func (p *Proxy) clean(response *http.Response) error {
	response.Header = pick(response.Header, received)
	p.cleanLocation(response)
	switch {
	case response.StatusCode == http.StatusUnauthorized:
		_ = response.Body.Close()
		response.StatusCode, response.Status = http.StatusForbidden, ""
		response.Header.Set("Content-Type", "text/plain; charset=utf-8")
		setBody(response, "the git host "+p.origin.Host+" does not accept the session's token: "+
			"the user must replace it in the settings\n")
	case response.StatusCode >= http.StatusBadRequest:
		return p.replaceBody(response, func(text []byte) ([]byte, error) { return text, nil })
	case isBatch(response.Request.URL.Path) && response.StatusCode == http.StatusOK:
		return p.replaceBody(response, p.rewriteBatch)
	}
	return nil
}

// cleanLocation changes redirects that stay on the git host, so that git follows them through the
// proxy. git follows a redirect to another host directly, without the token.
func (p *Proxy) cleanLocation(response *http.Response) {
	target, err := response.Location()
	if err != nil {
		response.Header.Del("Location")
		return
	}
	response.Header.Set("Location", p.options.Mask(p.localised(target)))
}

// localised replaces the git host in a URL with the proxy's address. It returns other URLs
// unchanged.
func (p *Proxy) localised(target *url.URL) string {
	if target.Scheme != p.origin.Scheme || !strings.EqualFold(target.Host, p.origin.Host) {
		return target.String()
	}
	return p.local + (&url.URL{Path: target.Path, RawPath: target.RawPath, RawQuery: target.RawQuery}).String()
}

func (p *Proxy) replaceBody(response *http.Response, change func([]byte) ([]byte, error)) error {
	if response.Header.Get("Content-Encoding") != "" {
		_ = response.Body.Close()
		response.Header.Del("Content-Encoding")
		setBody(response, "the git host "+p.origin.Host+" answers with status "+strconv.Itoa(response.StatusCode)+"\n")
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxText))
	_ = response.Body.Close()
	if err == nil {
		text, err = change(text)
	}
	if err != nil {
		return err
	}
	setBody(response, p.options.Mask(string(text)))
	return nil
}

func setBody(response *http.Response, text string) {
	response.Body, response.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	response.Header.Set("Content-Length", strconv.Itoa(len(text)))
}

func pick(from http.Header, names []string) http.Header {
	picked := http.Header{}
	for _, name := range names {
		if values := from.Values(name); len(values) > 0 {
			picked[name] = values
		}
	}
	return picked
}

func refuse(w http.ResponseWriter, code int, reason string) { http.Error(w, reason, code) }
