package rest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// keyHeader carries the session key.
const keyHeader = "X-Session-API-Key"

// longestDelay of the answer to a failed authentication.
const longestDelay = 5 * time.Second

// user is who sends a request: the UserSettings whose session key came with it.
type user struct {
	namespace, name string
	uid             types.UID
	// settings are as the cache has them, and must not be changed.
	settings *v1alpha1.UserSettings
}

func (u *user) key() types.NamespacedName {
	return types.NamespacedName{Namespace: u.namespace, Name: u.name}
}

// authenticated lets only users in, each at their rate, before anything of the body is read.
func (s *server) authenticated(o operation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		u, free, refused := s.admit(o, r)
		if refused != nil {
			// Without this the server would read the body to keep the connection.
			w.Header().Set("Connection", "close")
			refused.write(w)
			return
		}
		defer free()
		observationOf(r).user = u.key()
		req := request{Request: r}
		if o.readsBody {
			if req.body, refused = s.readBody(w, r); refused != nil {
				refused.write(w)
				return
			}
		}
		// A client that hangs up does not stop a write half way.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), requestTimeout)
		defer cancel()
		o.do(ctx, u, req).write(w)
	}
}

// admit finds whose request it is, and room for it.
func (s *server) admit(o operation, r *http.Request) (u *user, free func(), refused *answer) {
	if u, refused = s.authenticate(r); refused != nil {
		return nil, nil, refused
	}
	if wait := s.users.take(string(u.uid), 0); wait > 0 {
		return nil, nil, ptr.To(tooFast(wait))
	}
	if !o.readsBody {
		return u, func() {}, nil
	}
	free, refused = s.bodies.take(string(u.uid), s.announced(r))
	return u, free, refused
}

// authenticate looks the hash of the key up. What is compared are hashes, by a map: how long that takes says something about
// a hash at most, and nothing about a key.
func (s *server) authenticate(r *http.Request) (*user, *answer) {
	key := r.Header.Get(keyHeader)
	if key == "" {
		return nil, s.refuse(r)
	}
	sum := sha256.Sum256([]byte(key))
	// A cache that is not filled yet lets its readers wait.
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	found, err := s.cluster.usersByKeyHash(ctx, hex.EncodeToString(sum[:]))
	switch {
	case err != nil:
		logf.FromContext(r.Context()).Info("The cache could not be asked", "reason", reasonOf(err))
		return nil, ptr.To(unavailable())
	case len(found) > 1:
		// Whose request it is cannot be told, so it is nobody's.
		logf.FromContext(r.Context()).Info("Several UserSettings have the same session key; none of them can be used until they differ",
			"one", found[0].Namespace+"/"+found[0].Name, "other", found[1].Namespace+"/"+found[1].Name)
		return nil, s.refuse(r)
	case len(found) == 0:
		return nil, s.refuse(r)
	}
	settings := &found[0]
	return &user{namespace: settings.Namespace, name: settings.Name, uid: settings.UID, settings: settings}, nil
}

// refuse answers a failed authentication, later and later to an address with many of them. Who has a key is never
// slowed down, so nobody can shut others out, not even from behind the same proxy.
func (s *server) refuse(r *http.Request) *answer {
	authFailures.Inc()
	if wait := s.failures.take(addressOf(r), longestDelay); wait > 0 {
		timer := time.NewTimer(min(wait, longestDelay))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
	}
	return &unauthorized
}

// addressOf is where a request comes from. Who has one IPv6 address has the 2^64 beside it.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	address = address.Unmap().WithZone("")
	if prefix, err := address.Prefix(64); err == nil && address.Is6() {
		return prefix.String()
	}
	return address.String()
}
