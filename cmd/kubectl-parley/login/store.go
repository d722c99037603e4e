// Package login signs a person in with the device flow of an OpenID provider. It keeps the tokens
// in a file that only this person can read.
package login

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// expiryMargin is the remaining lifetime below which a token is refreshed.
	expiryMargin = 30 * time.Second

	lockInterval = 50 * time.Millisecond
)

// Login is the sign-in of a person at one facade.
type Login struct {
	Facade   string   `json:"facade"`
	Issuer   string   `json:"issuer"`
	ClientID string   `json:"client_id"`
	Scopes   []string `json:"scopes"`
	// Subject is the provider's ID of the person. It does not change when the token is refreshed.
	Subject      string    `json:"subject"`
	IDToken      string    `json:"id_token"`
	Expires      time.Time `json:"expires"`
	RefreshToken string    `json:"refresh_token,omitempty"`
	// Settings are the chosen UserSettings, as namespace/name; empty if the person chose none.
	Settings string `json:"settings,omitempty"`
}

// Store is a directory with one file per facade.
type Store struct{ dir string }

// DefaultStore returns the store in the user's configuration directory.
func DefaultStore() (*Store, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return nil, fmt.Errorf("find the directory for logins: %w", err)
	}
	return &Store{filepath.Join(dir, "parley")}, nil
}

// path returns the path of a file for a facade. The name is a hash, because URLs can contain
// characters that file names cannot.
func (s *Store) path(facade, extension string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(facade)))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16])+extension)
}

// Load returns the login at a facade; nil if there is none.
func (s *Store) Load(facade string) (*Login, error) {
	file := s.path(facade, ".json")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the login: %w", err)
	}
	l := &Login{}
	if json.Unmarshal(text, l) != nil {
		return nil, fmt.Errorf("the file %s is damaged: run kubectl parley login again", file)
	}
	return l, nil
}

// Save replaces the login at a facade.
func (s *Store) Save(ctx context.Context, l *Login) error {
	return s.locked(ctx, l.Facade, func() error { return s.write(l) })
}

// Choose stores the name of the UserSettings that the login at a facade uses.
func (s *Store) Choose(ctx context.Context, facade, settings string) error {
	return s.locked(ctx, facade, func() error {
		l, err := s.Load(facade)
		if err != nil || l == nil {
			return err
		}
		l.Settings = settings
		return s.write(l)
	})
}

// Remove deletes the login at a facade and returns it; nil if there was none.
func (s *Store) Remove(ctx context.Context, facade string) (l *Login, err error) {
	err = s.locked(ctx, facade, func() error {
		// Delete the file even if it is damaged.
		l, _ = s.Load(facade)
		if err := os.Remove(s.path(facade, ".json")); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	return l, err
}

// write replaces a file atomically.
func (s *Store) write(l *Login) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(s.dir, "login-*.tmp") // the mode of the file is 0600
	if err != nil {
		return fmt.Errorf("store the login: %w", err)
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), s.path(l.Facade, ".json"))
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("store the login: %w", err)
	}
	return nil
}

// locked calls do() while no other process changes the login at a facade.
func (s *Store) locked(ctx context.Context, facade string, do func() error) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("store the login: %w", err)
	}
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return fmt.Errorf("store the login: %w", err)
	}
	file, err := os.OpenFile(s.path(facade, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the login: %w", err)
	}
	defer func() { _ = file.Close() }() // this also unlocks the file
	for !tryLock(file) {
		select {
		case <-time.After(lockInterval):
		case <-ctx.Done():
			return fmt.Errorf("another kubectl parley command is using the saved login: %w", ctx.Err())
		}
	}
	return do()
}

// Token returns a valid ID token of the login at a facade. If the token has expired, one process
// refreshes it, and other processes wait for the new token: a provider may accept a refresh token
// only one time.
func (s *Store) Token(ctx context.Context, facade string) (string, error) {
	l, err := s.Load(facade)
	if err != nil {
		return "", err
	}
	if l.valid() {
		return l.IDToken, nil
	}
	err = s.locked(ctx, facade, func() error {
		if l, err = s.Load(facade); err != nil || l.valid() {
			return err
		}
		if l == nil || l.RefreshToken == "" {
			return errEnded
		}
		return errors.Join(l.refresh(ctx), s.write(l))
	})
	if err != nil {
		return "", err
	}
	return l.IDToken, nil
}

func (l *Login) valid() bool { return l != nil && time.Until(l.Expires) > expiryMargin }
