// Package secrets holds a session's secret values and masks them in its output.
package secrets

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/parley-dev/parley/api/session"
)

// Store holds a session's secret values. Its methods Key and Value take a key of the session
// Secret.
type Store struct {
	values map[string]string // by session.SecretVariable(key)
	mask   atomic.Pointer[mask]
}

// Take moves the session's secrets from this process's environment to a Store, so that no child
// inherits them. The kernel still shows the initial environment in /proc. To hide that environment
// from other processes, this process must have called supervise.Guard.
func Take(doc *session.Document) (*Store, error) {
	values := map[string]string{}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, session.SecretVariables) {
			continue
		}
		values[name] = value
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("read the session's secrets: %w", err)
		}
	}
	return newStore(values, withoutWords(values, doc)), nil
}

// Bound returns a Store with the data of a session Secret. A warm pod receives this data in a Bind.
func Bound(data map[string][]byte, doc *session.Document) *Store {
	values := map[string]string{}
	for key, value := range data {
		if key != session.DocumentFile {
			values[session.SecretVariable(key)] = string(value)
		}
	}
	return newStore(values, withoutWords(values, doc))
}

// New returns a Store with these secret values.
func New(values map[string]string) *Store {
	byVariable := map[string]string{}
	for key, value := range values {
		byVariable[session.SecretVariable(key)] = value
	}
	return newStore(byVariable, byVariable)
}

func newStore(values, secret map[string]string) *Store {
	s := &Store{values: values}
	s.mask.Store(newMask(formsOf(secretParts(secret))))
	return s
}

// Add adds a secret to the values that the Store masks. It must not be called concurrently.
func (s *Store) Add(secret string) {
	forms := formsOf([]string{secret})
	for _, form := range s.mask.Load().forms {
		forms[form] = true
	}
	s.mask.Store(newMask(forms))
}

// Key returns the value of a key without surrounding white space, because editors and shells append
// a line break. It returns an empty string if the key has no value.
func (s *Store) Key(key string) string { return strings.TrimSpace(s.Value(key)) }

// Value returns the value of a key, including surrounding white space.
func (s *Store) Value(key string) string { return s.values[session.SecretVariable(key)] }
