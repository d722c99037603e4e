// Package auth authenticates requests by the session key or by the signed cookie that replaces it
// in a browser.
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

// User is the authenticated user: the UserSettings with the session key of the request.
type User struct {
	Namespace, Name string
	UID             types.UID
	// Settings come from the cache. Do not modify them.
	Settings *v1alpha1.UserSettings
}

// ID identifies the user in budgets.
func (u *User) ID() string { return string(u.UID) }

// Key is the name of the user's settings.
func (u *User) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: u.Namespace, Name: u.Name}
}

// cacheTimeout limits the wait until the cache is filled.
const cacheTimeout = 2 * time.Second

// Credential identifies the user of a request: a session key or a cookie.
type Credential struct {
	// KeyHash is the hash of the session key.
	KeyHash string
	// UID is the cookie's user; empty for a key.
	UID types.UID
	// Expires is the cookie's expiry; zero for a key.
	Expires time.Time
	// ID identifies the cookie for revocation.
	ID string
}

// CredentialOf returns the credential of a session key.
func CredentialOf(key string) Credential {
	if key == "" {
		return Credential{}
	}
	sum := sha256.Sum256([]byte(key))
	return Credential{KeyHash: hex.EncodeToString(sum[:])}
}

// Authenticate looks up the user by the hash of the key. The duration of the lookup may reveal
// parts of a hash, but a hash does not reveal the key. Keys are too long to guess, so a wrong key
// is refused without a delay.
func Authenticate(ctx context.Context, objects cluster.API, credential Credential) (*User, error) {
	if credential.KeyHash == "" || !credential.Expires.IsZero() && !time.Now().Before(credential.Expires) {
		return nil, answer.Unauthorized
	}
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	found, err := objects.UsersByKeyHash(ctx, credential.KeyHash)
	switch {
	case err != nil:
		logf.FromContext(ctx).Info("Cannot read the cache", "reason", cluster.Reason(err))
		return nil, answer.Unavailable
	case len(found) > 1:
		logf.FromContext(ctx).Info("Refused a session key that several UserSettings share",
			"one", found[0].Namespace+"/"+found[0].Name, "other", found[1].Namespace+"/"+found[1].Name)
		return nil, answer.Unauthorized
	case len(found) == 0 || credential.UID != "" && credential.UID != found[0].UID:
		return nil, answer.Unauthorized
	}
	settings := &found[0]
	if credential.ID != "" && HasEnded(settings, credential.ID) {
		return nil, answer.Unauthorized
	}
	return &User{Namespace: settings.Namespace, Name: settings.Name, UID: settings.UID, Settings: settings}, nil
}
