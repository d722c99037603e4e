// Package secrets holds the secret values of a session and keeps them out of what it prints.
package secrets

import (
	"fmt"
	"os"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// Store holds the secret values of a session, by their keys in the session Secret.
type Store struct {
	values map[string]string // by their variables
	mask   *strings.Replacer
	// forms are the texts that are masked, the longest first.
	forms []string
}

// Take the session's secrets out of the environment of this process, so that no child gets them.
// The kernel still has them where it put them at the start: the process must not be one that others
// can look into.
func Take(doc *session.Document) (*Store, error) {
	values := map[string]string{}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, session.SecretVariables) {
			continue
		}
		values[name] = value
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("take the session's secrets: %w", err)
		}
	}
	return newStore(values, withoutWords(values, doc)), nil
}

// New is a Store of these values, by their keys, each of them a secret.
func New(values map[string]string) *Store {
	byVariable := map[string]string{}
	for key, value := range values {
		byVariable[session.SecretVariable(key)] = value
	}
	return newStore(byVariable, byVariable)
}

func newStore(values, secret map[string]string) *Store {
	mask, forms := newMask(secret)
	return &Store{values: values, mask: mask, forms: forms}
}

func (s *Store) longest() int {
	if len(s.forms) == 0 {
		return 0
	}
	return len(s.forms[0])
}

// Key is a value without the line break that editors and shells put at its end. It is empty where
// there is none.
func (s *Store) Key(key string) string { return strings.TrimSpace(s.Value(key)) }

// Value is a value as it stands.
func (s *Store) Value(key string) string { return s.values[session.SecretVariable(key)] }
