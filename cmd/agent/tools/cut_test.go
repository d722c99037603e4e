package tools

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The runtime masks secrets in the output of tools, but cannot recognise a part of a secret in
// truncated output.
func TestTruncatedOutputContainsNoPartOfASecret(t *testing.T) {
	t.Parallel()
	const secret = "sk-0123456789abcdefghijklmnopqrstuvwxyz"
	for name, text := range map[string]string{
		"a secret on each line":       strings.Repeat("KEY="+secret+"\n", 3000),
		"secrets on one line":         strings.Repeat(secret+" and then ", 3000),
		"secrets on one line of JSON": strings.Repeat(`{"key":"`+secret+`"},`, 3000),
		"a secret after much text":    strings.Repeat("x", maxOutput/2-20) + "\n" + secret + strings.Repeat("\ny", maxOutput),
		"a very long word":            strings.Repeat("x", 10*maxOutput),
		"short lines of text":         strings.Repeat("line\n", maxOutput),
	} {
		got := Cut(text, maxOutput)
		if rest := strings.ReplaceAll(got, secret, ""); strings.Contains(rest, secret[:8]) || strings.Contains(rest,
			secret[len(secret)-8:]) {
			t.Errorf("%s: a part of the secret remains", name)
		}
		if len(got) < maxOutput/2 || len(got) > maxOutput+100 || !strings.Contains(got, "characters were left out here") {
			t.Errorf("%s: %d characters remain", name, len(got))
		}
	}
}

func TestShortenedOutputContainsNoPartOfALongSecret(t *testing.T) {
	t.Parallel()
	token := strings.Repeat("eyJhbGci-0123_4567.", 45)
	key := `{"type": "account", "key": "` + strings.Repeat("MIIEvQ+0123/", 70) + `"}`
	for name, text := range map[string]string{
		"a token":              strings.Repeat("a word ", 20) + token,
		"a token at the start": token + strings.Repeat(" a word", 200),
		"a line of JSON":       "It is\n" + key + "\n" + key + "\n" + key + "\n" + key + "\nindeed",
		"only tokens":          token + token + token + token + token,
	} {
		for _, limit := range []int{200, 500, 2000} {
			got := strings.NewReplacer(token, "", key, "").Replace(Cut(text, limit))
			for _, part := range []string{"eyJhbGci", "4567.", "account", "MIIEvQ"} {
				if strings.Contains(got, part) {
					t.Errorf("%s, cut to %d: a part of the secret remains: %q", name, limit, got)
				}
			}
		}
	}
}

func TestTheTitleOfACommandIsNotTruncated(t *testing.T) {
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

// The output of a running command may end within a secret.
func TestAnIncompleteOutputLineOfARunningCommandIsHeldBack(t *testing.T) {
	t.Parallel()
	much := strings.Repeat("a line of it\n", maxOutput)
	for name, c := range map[string]struct{ prints, shows []string }{
		"half of a secret":        {[]string{"one\nKEY=sk-0123", "4567\ntwo\n"}, []string{"one\n", "KEY=sk-01234567\ntwo\n"}},
		"a secret in three parts": {[]string{"sk-", "0123", "4567\n"}, []string{"", "", "sk-01234567\n"}},
		"a secret after spaces": {[]string{`{"user": "me", "key": "01`, "23\"}\n"},
			[]string{"", "{\"user\": \"me\", \"key\": \"0123\"}\n"}},
		"a secret with punctuation": {[]string{"KEY=Tr0ub4dor#", "3xYzzy$", "y(s)", "k%2F\n"}, []string{"", "", "",
			"KEY=Tr0ub4dor#3xYzzy$y(s)k%2F\n"}},
		"a secret of several words":      {[]string{"correct ", "horse battery\n"}, []string{"", "correct horse battery\n"}},
		"a question with a space":        {[]string{"Go on? [Y/n] ", "done\n"}, []string{"Go on? [Y/n] ", "done\n"}},
		"a question without a space":     {[]string{"Overwrite (y/n)?", "done\n"}, []string{"Overwrite (y/n)?", "done\n"}},
		"a password prompt":              {[]string{"one\nPassword:", "\n"}, []string{"one\nPassword:", "\n"}},
		"a password prompt with a space": {[]string{"password: ", "\n"}, []string{"password: ", "\n"}},
		"shell prompts":                  {[]string{"$ ", "# "}, []string{"$ ", "# "}},
		"a Python prompt":                {[]string{">>> ", "1\n>>> "}, []string{">>> ", "1\n>>> "}},
		"a debugger prompt":              {[]string{"(gdb) "}, []string{"(gdb) "}},
		"an unusual prompt": {[]string{"say it", "", " again", "", ""},
			[]string{"", "say it", "", " again", ""}},
		"a progress line": {[]string{"10 of 20\r11 of", " 20\r"}, []string{"10 of 20\r", "11 of 20\r"}},
		"a secret after truncated output": {[]string{much + "sk-0123", "4567\n"},
			[]string{Cut(much, maxOutput), "sk-01234567\n"}},
		"a very long word": {[]string{strings.Repeat("x", 6000), "x\n"}, []string{strings.Repeat("x", 6000-4<<10),
			strings.Repeat("x", 4<<10) + "x\n"}},
		"a long line of words": {[]string{strings.Repeat("word ", 2000) + "sk-0123", "4567\n"},
			[]string{strings.Repeat("word ", 2000), "sk-01234567\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := newOutput("\x1dend\x1d")
				for i, piece := range c.prints {
					o.add([]byte(piece))
					time.Sleep(promptDelay) // fake time
					if got := o.take(true); strings.TrimSpace(got) != strings.TrimSpace(c.shows[i]) {
						t.Errorf("after %.40q it shows %.60q of %d, want %.60q", piece, got, len(got), c.shows[i])
					}
				}
			})
		})
	}
	o := newOutput("\x1dend\x1d")
	o.add([]byte("the last wor"))
	if got := o.take(true) + o.take(false); got != "the last wor" {
		t.Errorf("at the end it shows %q", got)
	}
}

func TestAnIncompleteLineIsShownIfNoOutputFollows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOutput("\x1dend\x1d")
		o.add([]byte("KEY=me:"))
		if got := o.take(true) + o.take(true); got != "" {
			t.Errorf("at once it shows %q", got)
		}
		time.Sleep(promptDelay) // fake time
		if got := o.take(true); got != "KEY=me:" {
			t.Errorf("later it shows %q", got)
		}
	})
}
