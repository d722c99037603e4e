package lifecycle

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTruncationKeepsWholeCharacters(t *testing.T) {
	if got := Truncate(strings.Repeat("é", MaxEventNote), MaxEventNote-1); len(got) != MaxEventNote-2 ||
		!utf8.ValidString(got) {
		t.Errorf("%d bytes, valid %t", len(got), utf8.ValidString(got))
	}
}
