package record_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/cmd/runtime/record"
)

// The agent can replace a record by a named pipe or a link. Read must not follow the link, and must
// not wait for a writer of the pipe.
func TestNamedPipesAndLinksAreNotReadButReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	elsewhere := filepath.Join(dir, "elsewhere")
	if err := os.WriteFile(elsewhere, []byte("a secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(path string) error{
		"pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link": func(path string) error { return os.Symlink(elsewhere, path) },
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(put(path), put(path+".new")); err != nil {
			t.Fatal(err)
		}
		if text, err := record.Read(path); !errors.Is(err, record.ErrNoFile) {
			t.Errorf("%s: it holds %q, %v", name, text, err)
		}
		if err := record.Write(path, strings.NewReader("text"), 0o600); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if text, err := record.Read(path); err != nil || string(text) != "text" {
			t.Errorf("%s: it holds %q, %v", name, text, err)
		}
	}
	if text, err := os.ReadFile(elsewhere); err != nil || string(text) != "a secret" {
		t.Errorf("the target of the link has %q, %v", text, err)
	}
}

func TestReadingAMissingRecordReturnsErrNotExist(t *testing.T) {
	t.Parallel()
	if _, err := record.Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is %v", err)
	}
}
