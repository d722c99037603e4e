package model

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// What a provider says is shown to all who watch, without the secrets in it. A part of one would
// not be known as such.
func TestALongRefusalIsCutBetweenWords(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("sk-0123456789", 20)
	for name, c := range map[string]struct{ message, want string }{
		"words":                   {strings.Repeat("no ", 90) + secret, strings.TrimSpace(strings.Repeat("no ", 90)) + "…"},
		"JSON without a space":    {`{"reason":"` + strings.Repeat("no,", 90) + secret + `"}`, `{"reason":"` + strings.Repeat("no,", 90) + "…"},
		"a language without them": {strings.Repeat("不行", 140) + secret, strings.Repeat("不行", 140) + "…"},
		"a word without end":      {secret + secret, "…"},
	} {
		body, err := json.Marshal(map[string]any{"error": map[string]any{"message": c.message}})
		if err != nil {
			t.Fatal(err)
		}
		got := readRefusal(http.StatusBadRequest, string(body)).explain("").Error()
		if _, said, _ := strings.Cut(got, "It said: "); said != c.want {
			t.Errorf("%s: got %q, want %q", name, said, c.want)
		}
	}
}
