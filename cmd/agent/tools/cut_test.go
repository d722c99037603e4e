package tools

import (
	"encoding/json"
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

func TestNoPartOfALongSecretIsLeftWhereLittleIsShown(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("eyJhbGci-0123_4567.", 45)
	key := `{"type": "account", "key": "` + strings.Repeat("MIIEvQ+0123/", 70) + `"}`
	for name, text := range map[string]string{
		"a token":          strings.Repeat("a word ", 20) + token,
		"a token, first":   token + strings.Repeat(" a word", 200),
		"a line of JSON":   "It is\n" + key + "\n" + key + "\n" + key + "\n" + key + "\nindeed",
		"nothing but such": token + token + token + token + token,
	} {
		for _, limit := range []int{200, 500, 2000} {
			got := strings.NewReplacer(token, "", key, "").Replace(Cut(text, limit))
			for _, part := range []string{"eyJhbGci", "4567.", "account", "MIIEvQ"} {
				if strings.Contains(got, part) {
					t.Errorf("%s, cut to %d: a part of it is left: %q", name, limit, got)
				}
			}
		}
	}
}

func TestTheTitleOfACommandHoldsASecretWholeOrNot(t *testing.T) {
	t.Parallel()
	command := `login --key '{"user": "me", "key": "` + strings.Repeat("0123456789", 40) + `"}' --yes`
	input, err := json.Marshal(map[string]string{"command": command + "\necho done"})
	if err != nil {
		t.Fatal(err)
	}
	if got := new(Shell).tool().describe(input).Title; got != command+" …" {
		t.Errorf("the title is %q", got)
	}
}
