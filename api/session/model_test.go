package session_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

func TestOnlyTheSessionCanDecryptItsModelSettings(t *testing.T) {
	settings := session.ModelSettings{Revision: "r", Model: "anthropic/claude", BaseURL: "https://example.com",
		Key: "sk-0123456789"}
	sealed, err := session.SealModel("session-key", "u1", settings)
	if err != nil || bytes.Contains(sealed, []byte("sk-0123456789")) || bytes.Contains(sealed, []byte("claude")) {
		t.Fatalf("sealed: %q, %v", sealed, err)
	}
	if got, err := session.OpenModel("session-key", "u1", sealed); err != nil || got != settings {
		t.Errorf("opened: %+v, %v", got, err)
	}
	altered := bytes.Clone(sealed)
	altered[len(altered)/2] ^= 1
	for name, c := range map[string]struct {
		key, uid string
		sealed   []byte
	}{
		"the key of another start": {"another-key", "u1", sealed},
		"another conversation":     {"session-key", "u2", sealed},
		"no key":                   {"", "u1", sealed},
		"altered":                  {"session-key", "u1", altered},
		"truncated":                {"session-key", "u1", sealed[:10]},
		"empty":                    {"session-key", "u1", nil},
	} {
		got, err := session.OpenModel(c.key, c.uid, c.sealed)
		if err == nil || got != (session.ModelSettings{}) || strings.Contains(err.Error(), "sk-") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := session.SealModel("", "u1", settings); err == nil {
		t.Error("sealed without a key")
	}
}

func TestTheLargestKeyFitsIntoSealedModelSettings(t *testing.T) {
	// Like most keys, this key has no characters that JSON escapes. With many such characters, the
	// sealed settings could exceed MaxModel, because an escape has up to six bytes.
	sealed, err := session.SealModel("session-key", "u1", session.ModelSettings{
		Key: strings.Repeat("k", session.MaxSecret), Model: strings.Repeat("m", 256), BaseURL: strings.Repeat("u", 2048)})
	if err != nil || len(sealed) > session.MaxModel {
		t.Errorf("%d bytes, %v", len(sealed), err)
	}
}
