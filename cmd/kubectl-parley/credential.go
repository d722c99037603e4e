package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/kubectl-parley/login"
)

const keyVariable, tokenVariable = "PARLEY_KEY", "PARLEY_TOKEN"

// credential identifies the user: a session key, or a token of a person. The zero credential
// identifies no one.
type credential struct {
	key string
	// token returns a valid token. This function is nil if the credential is a key.
	token func(context.Context) (string, error)
	// settings is the namespace/name of the UserSettings object to use with a token. It is empty if
	// the user chose none.
	settings string
	// stored is set if the token comes from kubectl parley login.
	stored bool
	// rejected completes the error message "the facade rejected …": it says where the credential
	// comes from and what to do.
	rejected string
}

func bearer(token, rejected string) credential {
	return credential{token: func(context.Context) (string, error) { return token, nil }, rejected: rejected}
}

func (c *credential) authorize(ctx context.Context, header http.Header) error {
	switch {
	case c.key != "":
		header.Set(rest.KeyHeader, c.key)
	case c.token != nil:
		token, err := c.token(ctx)
		if err != nil {
			return err
		}
		header.Set("Authorization", "Bearer "+token)
		if c.settings != "" {
			header.Set(rest.SettingsHeader, c.settings)
		}
	}
	return nil
}

// person returns a client that acts as a person. The person's token comes from $PARLEY_TOKEN or, if
// this variable is empty, from the stored login at the facade. person returns nil if there is no
// token, if a session key is set, or if the facade's URL is not set. The command then needs rights
// in Kubernetes.
func (f *facadeFlags) person(say reporter) (*facadeUser, error) {
	if f.facade == "" || os.Getenv(keyVariable) != "" {
		return nil, nil
	}
	address, err := f.address(say)
	if err != nil {
		return nil, err
	}
	user := &facadeUser{url: address, say: say}
	if token := strings.TrimSpace(os.Getenv(tokenVariable)); token != "" {
		user.credential = bearer(token, "the token in $"+tokenVariable+": get a new one")
	} else if err := user.loadLogin(); err != nil || user.token == nil {
		return nil, err
	}
	if f.settings == "" {
		return user, nil
	}
	if namespace, name, found := strings.Cut(f.settings, "/"); !found || namespace == "" || name == "" {
		return nil, fmt.Errorf("--settings %s: write NAMESPACE/NAME, as kubectl parley whoami prints it", f.settings)
	}
	user.settings = f.settings
	return user, nil
}

// loadLogin sets the credential to the stored login at the facade, if there is one.
func (p *facadeUser) loadLogin() error {
	store, err := login.DefaultStore()
	if err != nil {
		return nil //nolint:nilerr // without a configuration directory, there is no login
	}
	l, err := store.Load(p.url)
	if err != nil || l == nil {
		return err
	}
	if !login.Secure(p.url) {
		return errors.New("--facade or $PARLEY_FACADE is not an https URL: tokens are sent over https only")
	}
	p.credential = credential{stored: true, settings: l.Settings,
		rejected: "your sign-in: run kubectl parley login",
		token:    func(ctx context.Context) (string, error) { return store.Token(ctx, p.url) }}
	return nil
}

func keyOfEnvironment() credential {
	return credential{key: os.Getenv(keyVariable), rejected: "the key in $" + keyVariable +
		": unset it to use your login or the key in the user's Secret"}
}

// keyOf returns the key in $PARLEY_KEY, or else the key in the user's Secret.
func (c *cluster) keyOf(ctx context.Context, user string) (credential, error) {
	if os.Getenv(keyVariable) != "" {
		return keyOfEnvironment(), nil
	}
	settings := &v1alpha1.UserSettings{}
	if err := c.Get(ctx, c.key(user), settings); err != nil {
		return credential{}, err
	}
	ref := settings.Status.SessionKeyRef
	if ref == nil {
		return credential{}, fmt.Errorf("the UserSettings %s have no session key yet: try again, or check that "+
			"the manager runs", user)
	}
	secret := &corev1.Secret{}
	if err := c.Get(ctx, c.key(ref.Name), secret); err != nil {
		return credential{}, fmt.Errorf("cannot read the user's key: %w (or run kubectl parley login, or set the key in "+
			"$PARLEY_KEY)", err)
	}
	return credential{key: sessionKey(secret, ref), rejected: fmt.Sprintf("the key in the Secret %s: check that "+
		"the URL in --facade or $PARLEY_FACADE belongs to the cluster of this Secret", ref.Name)}, nil
}
