package secrets_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

func TestAStreamIsMaskedForAnySizeOfWrites(t *testing.T) {
	store := secrets.New(map[string]string{"a": "xxabcd", "b": "cdefgh", "c": "cdef"})
	for text, want := range map[string]string{
		"":                  "",
		"nothing":           "nothing",
		"an xxabcd in it":   "an *** in it",
		"cdefgh and cdef":   "*** and ***",
		"xxabcdefgh":        "***efgh",
		"xxabcxxabcd":       "xxabc***",
		"xxxxxabcdcdef xx":  "xxx****** xx",
		"cdefg":             "***g",
		"data: cde\n\nxxab": "data: cde\n\nxxab",
	} {
		for size := 1; size <= len(text)+1; size++ {
			var out bytes.Buffer
			stream := store.Stream(&out)
			for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
				if _, err := stream.Write([]byte(rest[:min(size, len(rest))])); err != nil {
					t.Fatal(err)
				}
			}
			if err := stream.Close(); err != nil {
				t.Fatal(err)
			}
			if out.String() != want {
				t.Errorf("%q in parts of %d is %q, want %q", text, size, out.String(), want)
			}
			if begun := store.MaskUnfinished(text[:size-1]); !strings.HasPrefix(want, begun) {
				t.Errorf("the beginning of %q is shown as %q", text, begun)
			}
		}
	}
}

func TestAStreamBuffersOnlyPossibleSecrets(t *testing.T) {
	var out bytes.Buffer
	stream := secrets.New(map[string]string{"key": "sk-0123456789"}).Stream(&out)
	for _, step := range []struct{ write, passed string }{
		{"event: a\n", "event: a\n"}, {"less", "event: a\nles"}, {"k-0", "event: a\nles"}, {"!\n", "event: a\nlessk-0!\n"},
	} {
		if _, err := stream.Write([]byte(step.write)); err != nil {
			t.Fatal(err)
		}
		if out.String() != step.passed {
			t.Errorf("after %q: %q", step.write, out.String())
		}
	}
	long := strings.Repeat("sk-012345678", 1<<16)
	if _, err := stream.Write([]byte(long)); err != nil {
		t.Fatal(err)
	}
	if got := out.Len() - len("event: a\nlessk-0!\n"); got < len(long)-20 {
		t.Errorf("of %d bytes %d were written", len(long), got)
	}
}
