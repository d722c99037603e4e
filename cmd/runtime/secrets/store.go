// Package secrets reads the secret values of a session and keeps them out of what it prints.
package secrets

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/parley-dev/parley/api/session"
)

// Store holds the secret values of a session, by the names of their files.
type Store struct {
	values map[string]string
	mask   *strings.Replacer
	// forms are the texts that are masked, the longest first.
	forms []string
}

// Load reads every file of the session's directory but the document. Each is a secret, but for words in the environment
// of a tool server.
func Load(dir string, doc *session.Document) (*Store, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the session's secrets: %w", err)
	}
	values := map[string]string{}
	for _, entry := range entries {
		// A volume of Kubernetes keeps its versions in directories whose names start with two dots.
		if entry.IsDir() || entry.Name() == session.DocumentFile || strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		value, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the session's secrets: %w", err)
		}
		values[entry.Name()] = string(value)
	}
	store := New(withoutWords(values, doc))
	store.values = values
	return store, nil
}

// New is a Store of these values, each of them a secret.
func New(values map[string]string) *Store {
	mask, forms := newMask(values)
	return &Store{values: values, mask: mask, forms: forms}
}

func (s *Store) longest() int {
	if len(s.forms) == 0 {
		return 0
	}
	return len(s.forms[0])
}

// Key is the value in a file, without the line break that editors and shells put at its end. It is empty where
// there is no such file.
func (s *Store) Key(file string) string { return strings.TrimSpace(s.values[file]) }

// Value is the value in a file as it stands.
func (s *Store) Value(file string) string { return s.values[file] }
