// Package auth finds out which user sends a request: by the session key, or by the signed cookie that
// takes its place in a browser.
package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"k8s.io/apimachinery/pkg/types"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// User is who sends a request: the UserSettings whose session key came with it.
type User struct {
	Namespace, Name string
	UID             types.UID
	// Settings are as the cache has them, and must not be changed.
	Settings *v1alpha1.UserSettings
}

// ID of the user in budgets.
func (u *User) ID() string { return string(u.UID) }

// Key names the user's settings.
func (u *User) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: u.Namespace, Name: u.Name}
}

// cacheTimeout bounds the wait for a cache that is not filled yet.
const cacheTimeout = 2 * time.Second

// Credential is what identifies the sender of a request: a session key or a cookie.
type Credential struct {
	// KeyHash is the hash of the session key.
	KeyHash string
	// UID of the cookie's user; empty for a key.
	UID types.UID
	// Expires is when a cookie ends; zero for a key.
	Expires time.Time
	// ID by which a cookie can be ended before that.
	ID string
}

// CredentialOf a session key.
func CredentialOf(key string) Credential {
	if key == "" {
		return Credential{}
	}
	sum := sha256.Sum256([]byte(key))
	return Credential{KeyHash: hex.EncodeToString(sum[:])}
}

// Authenticate looks up the hash of the key. Timing may reveal something about a hash, and nothing
// about a key. Keys are too long to be guessed, so a wrong one is answered without delay.
func Authenticate(ctx context.Context, objects cluster.API, shown Credential) (*User, error) {
	if shown.KeyHash == "" || !shown.Expires.IsZero() && !time.Now().Before(shown.Expires) {
		return nil, answer.Unauthorized
	}
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	found, err := objects.UsersByKeyHash(ctx, shown.KeyHash)
	switch {
	case err != nil:
		logf.FromContext(ctx).Info("The cache could not be asked", "reason", cluster.Reason(err))
		return nil, answer.Unavailable
	case len(found) > 1:
		logf.FromContext(ctx).Info("Several UserSettings have the same session key; it is refused until they differ",
			"one", found[0].Namespace+"/"+found[0].Name, "other", found[1].Namespace+"/"+found[1].Name)
		return nil, answer.Unauthorized
	case len(found) == 0 || shown.UID != "" && shown.UID != found[0].UID:
		return nil, answer.Unauthorized
	}
	settings := &found[0]
	if shown.ID != "" && HasEnded(settings, shown.ID) {
		return nil, answer.Unauthorized
	}
	return &User{Namespace: settings.Namespace, Name: settings.Name, UID: settings.UID, Settings: settings}, nil
}
