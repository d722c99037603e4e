package main

import (
	"os"
	"path/filepath"
	"testing"

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
		{forged, "", false}, // outside of a pod
	} {
		if err := os.WriteFile(filepath.Join(dir, session.DocumentFile), c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readDocument(dir, c.digest); (err != nil) != c.refused {
			t.Errorf("%s with digest %q: %v", c.content, c.digest, err)
		}
	}
}
