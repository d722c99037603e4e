package driver

import (
	"strings"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/secrets"
)

func TestTruncatedPreviewsContainNoPartOfASecret(t *testing.T) {
	t.Parallel()
	const secret = "sk-q0W1e2R3t4Y5u6I7o8P9a0S1d2F3g4H5j6K7l8Z9"
	d := &Driver{Options: Options{MaskUnfinished: secrets.New(map[string]string{"key": secret}).MaskUnfinished}}
	for _, between := range []string{"", " ", "\n", "é", " between\n"} {
		for most := range len(secret) + 2 {
			text := strings.Repeat(secret+between, 2000)
			text = text[:len(text)-most]
			got := d.previewEnd(text, 1000+most)
			for i := range len(secret) - 4 {
				if strings.Contains(got, secret[i:i+4]) {
					t.Fatalf("%q between secrets: shown %.100q", between, got)
				}
			}
			if len(got) > 1000+most || got == "" && between == " between\n" {
				t.Errorf("%q between secrets: %d bytes", between, len(got))
			}
		}
	}
	if got := d.previewEnd("x"+strings.Repeat("é", 40<<10), 1000); strings.Trim(got, "é") != "" || len(got) < 998 {
		t.Errorf("shown %.20q", got)
	}
}
