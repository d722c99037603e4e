package router

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// addUpstreams adds an upstream for each server and chooses its name. A server without a name is
// named after its host.
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

func unique(name, separator string, taken func(string) bool) string {
	candidate := name
	for n := 2; taken(candidate); n++ {
		candidate = name + separator + strconv.Itoa(n)
	}
	return candidate
}

// hostName returns a URL's host. It replaces characters that are not allowed in tool names.
func hostName(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return "server"
	}
	return notInNames.ReplaceAllString(u.Hostname(), "-")
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// longestName is the longest tool name that models accept.
const longestName = 64

// shortened replaces the end of a long name with a digest of the name and the server's name. A
// digest of the name alone would not be unique: tool c of server a_b and tool b_c of server a have
// the same full name.
func (u *upstream) shortened(name string) string {
	if len(name) <= longestName {
		return name
	}
	digest := sha256.Sum256([]byte(u.name + "\x00" + name))
	end := "_" + hex.EncodeToString(digest[:5])
	if u.router.options.Mask(name) != name {
		name = u.name // shortening could leave a part of a secret, which is not masked
	}
	return strings.ToValidUTF8(name[:min(len(name), longestName-len(end))], "") + end
}

// claim returns an item's name at the router: <server>_<name>. If another item has this name, claim
// appends a number. An item keeps its name until the name is released.
func (r *Router) claim(u *upstream, kind, name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	item := original{u, kind, name}
	if name, ok := r.names[item]; ok {
		return name
	}
	taken := func(name string) bool { return r.claims[claim{kind, u.shortened(name)}] }
	name = u.shortened(unique(u.name+"_"+name, "_", taken))
	r.claims[claim{kind, name}], r.names[item] = true, name
	return name
}

// release frees the names of a server's items that are no longer offered.
func release[T any](u *upstream, kind string, offered map[string]*T) {
	r := u.router
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.names, func(item original, name string) bool {
		if _, still := offered[name]; still || item.server != u || item.kind != kind {
			return false
		}
		delete(r.claims, claim{kind, name})
		return true
	})
}

// uriPrefix returns the prefix for the URIs of a server's resources. Without the prefix, resources
// of two servers could have the same URI.
func (u *upstream) uriPrefix() string { return "parley://" + u.name + "/" }
