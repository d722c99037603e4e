package router

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// addUpstreams gives each server its name: a stdio server has one, the others are named after their hosts.
func (r *Router) addUpstreams(servers session.ToolServers) {
	taken := map[string]bool{}
	add := func(name, kind string, dial dialer) {
		name = unique(name, "-", func(name string) bool { return taken[name] })
		taken[name] = true
		r.upstreams = append(r.upstreams, newUpstream(r, name, kind, dial))
	}
	for _, s := range servers.Stdio {
		add(s.Name, "stdio", r.stdio(s))
	}
	for _, s := range servers.SSE {
		add(hostName(s.URL), "sse", r.sse(s))
	}
	for _, s := range servers.SHTTP {
		add(hostName(s.URL), "shttp", r.streamable(s))
	}
}

// unique adds a number to a name that is taken.
func unique(name, separator string, taken func(string) bool) string {
	candidate := name
	for n := 2; taken(candidate); n++ {
		candidate = name + separator + strconv.Itoa(n)
	}
	return candidate
}

// hostName is the host of a URL in the letters that names of tools may have.
func hostName(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return "server"
	}
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			return c
		}
		return '-'
	}, u.Hostname())
}

// claim is the name under which the endpoint offers something of a server: <server>_<name>. Two servers can come
// to the same name, as a_b with c and a with b_c do; then the later one gets a number.
func (r *Router) claim(u *upstream, kind, name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	name = unique(u.name+"_"+name, "_", func(name string) bool {
		owner, taken := r.claims[claim{kind, name}]
		return taken && owner != u
	})
	r.claims[claim{kind, name}] = u
	return name
}

// uriPrefix stands before the URIs of a server's resources, since two servers may use the same.
func (u *upstream) uriPrefix() string { return "parley://" + u.name + "/" }
