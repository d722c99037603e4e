// Package auth authenticates requests by a session key, by a token of a person, or by a signed
// cookie. In a browser, the cookie replaces the key or the token.
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

// User is the authenticated user of a request. Namespace, Name and UID identify the UserSettings
// that have the session key of the request, or that the signed-in person uses.
type User struct {
	Namespace, Name string
	UID             types.UID
	// Person is the username of the person; empty for a session key.
	Person string
	// Settings come from the cache. Do not modify them.
	Settings *v1alpha1.UserSettings
}

// ID identifies the user in the limits on requests and memory.
func (u *User) ID() string { return string(u.UID) }

// Key returns the namespace and the name of the user's settings.
func (u *User) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: u.Namespace, Name: u.Name}
}

// cacheTimeout limits the wait until the cache is filled.
const cacheTimeout = 2 * time.Second

// Method is the kind of a credential.
type Method string

// These are the methods of authentication.
const (
	ByKey        Method = "key"
	ByCookie     Method = "cookie"
	ByOIDC       Method = "oidc"
	ByKubernetes Method = "kubernetes"
)

// Credential identifies the user of a request: a session key, a token or a cookie.
type Credential struct {
	Method Method
	// KeyHash is the hash of the session key; empty for a person.
	KeyHash string
	// UID is the UID of the UserSettings; set only for a cookie with a KeyHash.
	UID types.UID
	// Expires is the expiry of a cookie or of an ID token; zero for other credentials.
	Expires time.Time
	// ID identifies the cookie for revocation.
	ID string
	// Username and Groups identify a person. A cookie contains only the groups that UserSettings of
	// this person require.
	Username string
	Groups   []string
	// Settings are the settings that the person chose, if any.
	Settings types.NamespacedName
	// Token is the token of the request. An open stream verifies the token again at intervals.
	Token string
}

// CredentialOf returns the credential of a session key.
func CredentialOf(key string) Credential {
	if key == "" {
		return Credential{}
	}
	sum := sha256.Sum256([]byte(key))
	return Credential{Method: ByKey, KeyHash: hex.EncodeToString(sum[:])}
}

// Authenticate returns the user of a credential.
func Authenticate(ctx context.Context, objects cluster.API, credential Credential) (*User, error) {
	if !credential.Expires.IsZero() && !time.Now().Before(credential.Expires) {
		return nil, answer.Unauthorized
	}
	var settings *v1alpha1.UserSettings
	var err error
	switch {
	case credential.Username != "":
		settings, err = choose(ctx, objects, credential)
	case credential.KeyHash != "":
		settings, err = settingsOfKey(ctx, objects, credential)
	default:
		err = answer.Unauthorized
	}
	if err != nil {
		return nil, err
	}
	return &User{Namespace: settings.Namespace, Name: settings.Name, UID: settings.UID, Settings: settings,
		Person: credential.Username}, nil
}

// settingsOfKey looks up the settings by the hash of the key. The duration of the lookup may reveal
// parts of a hash, but a hash does not reveal the key. Keys are too long to guess, so a wrong key
// is refused without a delay.
func settingsOfKey(ctx context.Context, objects cluster.API, credential Credential) (*v1alpha1.UserSettings, error) {
	found, err := fromCache(ctx, credential.KeyHash, objects.UsersByKeyHash)
	switch {
	case err != nil:
		return nil, err
	case len(found) > 1:
		logf.FromContext(ctx).Info("Refused a session key that several UserSettings share",
			"one", found[0].Namespace+"/"+found[0].Name, "other", found[1].Namespace+"/"+found[1].Name)
		return nil, answer.Unauthorized
	case len(found) == 0 || credential.UID != "" && credential.UID != found[0].UID,
		credential.ID != "" && HasEnded(&found[0], credential.ID):
		return nil, answer.Unauthorized
	}
	return &found[0], nil
}

func fromCache(ctx context.Context, by string, read func(context.Context, string) ([]v1alpha1.UserSettings, error)) (
	[]v1alpha1.UserSettings, error) {
	ctx, cancel := context.WithTimeout(ctx, cacheTimeout)
	defer cancel()
	found, err := read(ctx, by)
	if err != nil {
		logf.FromContext(ctx).Info("Cannot read the cache", "reason", cluster.Reason(err))
		return nil, answer.Unavailable
	}
	return found, nil
}
