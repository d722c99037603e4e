package auth

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Proxies are trusted proxies in front of the facade.
type Proxies []netip.Prefix

// ParseProxies parses IP addresses and CIDRs, separated by commas or spaces.
func ParseProxies(text string) (Proxies, error) {
	var all Proxies
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			address, addressErr := netip.ParseAddr(word)
			if addressErr != nil {
				return nil, fmt.Errorf("%q is not an IP address or CIDR: %w", word, err)
			}
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		all = append(all, prefix.Masked())
	}
	return all, nil
}

// overTLS reports whether the client sent a request over TLS, to the facade or to a trusted proxy.
func (p Proxies) overTLS(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	_, trusted := p.peer(r)
	return trusted && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// Origin returns the facade's origin, as the browser that sent the request sees it.
func (c *Cookies) Origin(r *http.Request) string {
	if c.proxies.overTLS(r) {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

var foreign = answer.Refuse(http.StatusForbidden, "The request comes from a page of another origin")

// SameOrigin refuses requests that do not come from the facade's own page. Browsers send the header
// Origin with every write. Behind an untrusted proxy that terminates TLS, SameOrigin can compare
// only the host.
func (c *Cookies) SameOrigin(r *http.Request) error {
	origin, err := url.Parse(r.Header.Get("Origin"))
	if err != nil || origin.Host == "" || !strings.EqualFold(origin.Host, r.Host) {
		return foreign
	}
	if origin.Scheme != "https" && (origin.Scheme != "http" || c.proxies.overTLS(r)) {
		return foreign
	}
	return nil
}
