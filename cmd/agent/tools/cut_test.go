package tools

import (
	"strings"
	"testing"
)

// What a tool says is shown to all who watch, without the secrets in it. A part of one would not be
// known as such.
func TestNoPartOfASecretIsLeftWhereOutputIsCut(t *testing.T) {
	t.Parallel()
	const secret = "sk-0123456789abcdefghijklmnopqrstuvwxyz"
	for name, text := range map[string]string{
		"a line each":         strings.Repeat("KEY="+secret+"\n", 3000),
		"one line":            strings.Repeat(secret+" and then ", 3000),
		"one line of JSON":    strings.Repeat(`{"key":"`+secret+`"},`, 3000),
		"much before it":      strings.Repeat("x", maxOutput/2-20) + "\n" + secret + strings.Repeat("\ny", maxOutput),
		"a word without end":  strings.Repeat("x", 10*maxOutput),
		"short lines of text": strings.Repeat("line\n", maxOutput),
	} {
		got := Cut(text, maxOutput)
		if rest := strings.ReplaceAll(got, secret, ""); strings.Contains(rest, secret[:8]) || strings.Contains(rest, secret[len(secret)-8:]) {
			t.Errorf("%s: a part of it is left", name)
		}
		if len(got) < maxOutput/2 || len(got) > maxOutput+100 || !strings.Contains(got, "characters were left out here") {
			t.Errorf("%s: %d characters are left", name, len(got))
		}
	}
}
