package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/api/session"
)

func TestASessionRefusesAReplacedSessionDocument(t *testing.T) {
	dir, signed, forged := t.TempDir(), []byte(`{"idleTimeout":"1h"}`), []byte(`{"idleTimeout":"0s"}`)
	for _, c := range []struct {
		content []byte
		digest  string
		refused bool
	}{
		{signed, session.DocumentDigest(signed), false},
		{forged, session.DocumentDigest(signed), true},
		{forged, "", false}, // outside of a pod, there is no digest
	} {
		if err := os.WriteFile(filepath.Join(dir, session.DocumentFile), c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readDocument(dir, c.digest); (err != nil) != c.refused {
			t.Errorf("%s with digest %q: %v", c.content, c.digest, err)
		}
	}
}

// The home directory may be on a volume to which an earlier agent wrote.
func TestAWarmPodReplacesLinksAndPipesWhenItWritesTheSessionDocument(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(home, elsewhere string) error{
		"a link in place of the directory": func(home, elsewhere string) error {
			return os.Symlink(elsewhere, filepath.Join(home, ".parley"))
		},
		"a link in place of the file": func(home, elsewhere string) error {
			return inDirectory(home, func(file string) error {
				return os.Symlink(filepath.Join(elsewhere, session.DocumentFile), file)
			})
		},
		"a pipe in place of the file": func(home, _ string) error {
			return inDirectory(home, func(file string) error { return unix.Mkfifo(file, 0o600) })
		},
		"a directory in place of the file": func(home, _ string) error {
			return inDirectory(home, func(file string) error { return os.MkdirAll(filepath.Join(file, "x"), 0o700) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, elsewhere := t.TempDir(), t.TempDir()
			if err := put(home, elsewhere); err != nil {
				t.Fatal(err)
			}
			s := &run{env: environment{home: home, document: []byte("{}")}}
			if err := s.writeDocument(); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(home, ".parley", session.DocumentFile)); string(got) != "{}" {
				t.Errorf("the file has the content %q, %v", got, err)
			}
			if left, _ := os.ReadDir(elsewhere); len(left) > 0 {
				t.Errorf("%s was written outside of the home directory", left[0].Name())
			}
		})
	}
}

func inDirectory(home string, put func(file string) error) error {
	dir := filepath.Join(home, ".parley")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return put(filepath.Join(dir, session.DocumentFile))
}
