package router

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// addUpstreams gives each server its name: where it has none it is named after its host.
func (r *Router) addUpstreams(servers session.ToolServers) {
	taken := map[string]bool{}
	add := func(name, kind string, dial dialer) {
		name = unique(name, "-", func(name string) bool { return taken[name] })
		taken[name] = true
		r.upstreams = append(r.upstreams, &upstream{router: r, name: name, kind: kind, dial: dial,
			changed: make(chan struct{}, 1)})
	}
	for _, s := range servers.Stdio {
		add(s.Name, "stdio", r.stdio(s))
	}
	for _, s := range servers.SSE {
		add(cmp.Or(s.Name, hostName(s.URL)), "sse", r.remote(s, sse))
	}
	for _, s := range servers.SHTTP {
		add(cmp.Or(s.Name, hostName(s.URL)), "shttp", r.remote(s, r.streamable))
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

// longestName is the longest that models accept for a tool.
const longestName = 64

// shortened is a name of an acceptable length, the same one each time. Where the name is too long,
// a digest takes the place of its end: also of the server's name, since c of a_b is not b_c of a.
func (u *upstream) shortened(name string) string {
	if len(name) <= longestName {
		return name
	}
	digest := sha256.Sum256([]byte(u.name + "\x00" + name))
	end := "_" + hex.EncodeToString(digest[:5])
	if u.router.options.Mask(name) != name {
		name = u.name // a part of a secret is not known as such
	}
	return strings.ToValidUTF8(name[:min(len(name), longestName-len(end))], "") + end
}

// claim is the name under which the endpoint offers something of a server: <server>_<name>. Two
// things can come to the same name, as c of a_b and b_c of a do; then the later one gets a number.
// It keeps its name until it is released.
func (r *Router) claim(u *upstream, kind, name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	thing := original{u, kind, name}
	if name, ok := r.names[thing]; ok {
		return name
	}
	taken := func(name string) bool { return r.claims[claim{kind, u.shortened(name)}] }
	name = u.shortened(unique(u.name+"_"+name, "_", taken))
	r.claims[claim{kind, name}], r.names[thing] = true, name
	return name
}

// release the names of a server's things of one kind that are not offered any more.
func release[T any](u *upstream, kind string, offered map[string]*T) {
	r := u.router
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.names, func(thing original, name string) bool {
		if _, still := offered[name]; still || thing.server != u || thing.kind != kind {
			return false
		}
		delete(r.claims, claim{kind, name})
		return true
	})
}

// uriPrefix stands before the URIs of a server's resources, since two servers may use the same.
func (u *upstream) uriPrefix() string { return "parley://" + u.name + "/" }
