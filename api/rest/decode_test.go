package rest

import (
	"strings"
	"testing"
)

func TestArgumentsAreSplitAsInAShell(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                  ``,
		"  ":                ``,
		"a b":               `a|b`,
		" a\tb\nc ":         `a|b|c`,
		`'a b' "c d"`:       `a b|c d`,
		`a'b'"c"d`:          `abcd`,
		`'' ""`:             `|`,
		`a\ b \'`:           `a b|'`,
		`"a\"b\\c\d$X"`:     `a"b\c\d$X`,
		`'a\b'`:             `a\b`,
		`$HOME ~ * $(date)`: `$HOME|~|*|$(date)`,
		`--x="a b" ü`:       `--x=a b|ü`,
	} {
		words, ok := splitWords(line)
		if got := strings.Join(words, "|"); !ok || got != want {
			t.Errorf("%q is split into %q, want %q", line, got, want)
		}
	}
	for _, line := range []string{`'a`, `"a`, `a\`, `"a\"`} {
		if words, ok := splitWords(line); ok {
			t.Errorf("%q has an open quote, but is split into %q", line, words)
		}
	}
}
