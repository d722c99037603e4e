package auth

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

func (p Proxies) peer(r *http.Request) (address netip.Addr, trusted bool) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	address, err = netip.ParseAddr(host)
	return address, err == nil && p.trusts(address)
}

func (p Proxies) trusts(address netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(address.Unmap()) })
}

// ClientNetwork returns the IPv4 address of the client, or the /64 network of its IPv6 address. One
// client can use all addresses of a /64 network.
func (p Proxies) ClientNetwork(r *http.Request) string {
	address, err := netip.ParseAddr(p.ClientAddress(r))
	if err != nil || address.Is4() {
		return p.ClientAddress(r)
	}
	return netip.PrefixFrom(address, 64).Masked().String()
}

// ClientAddress returns the address of the peer. If the peer is a trusted proxy, it returns the
// last address in X-Forwarded-For that is not a trusted proxy. Clients can forge the addresses
// before that address.
func (p Proxies) ClientAddress(r *http.Request) string {
	client, trusted := p.peer(r)
	if !client.IsValid() {
		return ""
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		if !trusted {
			break
		}
		address, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		client, trusted = address, p.trusts(address)
	}
	return client.Unmap().String()
}
