package llm

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// The runtime masks secrets in error messages. It cannot recognise a part of a secret.
func TestErrorsQuoteAMessageCompletelyOrNotAtAll(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{
		"a key":           strings.Repeat("sk-0123456789", 20),
		"with separators": strings.Repeat("user:0123,4567;", 20),
		"with spaces":     strings.Repeat("correct horse ", 20) + "battery",
		"not ASCII":       strings.Repeat("pässwörter", 20),
	} {
		for _, before := range []string{strings.Repeat("no ", 90), strings.Repeat("no,", 90), strings.Repeat("不行", 140),
			strings.Repeat("no, ", 2000)} {
			body, err := json.Marshal(map[string]any{"error": map[string]any{"message": before + secret + "!"}})
			if err != nil {
				t.Fatal(err)
			}
			got := parseProviderError(http.StatusBadRequest, string(body)).explain("").Error()
			whole := strings.HasSuffix(got, " The provider's message: "+before+secret+"!")
			if none := got == "The model's provider refused the request."; !whole && !none || whole == (len(before) > maxQuote) {
				t.Errorf("%s after %.10q: got %q", name, before, got)
			}
		}
	}
}
