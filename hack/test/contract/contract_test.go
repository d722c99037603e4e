package contract

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAnswersAreCheckedAgainstTheContract(t *testing.T) {
	conversation := `{"conversation_id": "c", "status": "ok", "conversation_status": "STARTING", "message": null}`
	for name, test := range map[string]struct {
		method, path string
		code         int
		header, body string
		want         string // empty if the answer is documented
	}{
		"a documented answer":       {"GET", "/alive", 200, "application/json", `{"status": "ok"}`, ""},
		"a body that is no JSON":    {"GET", "/alive", 200, "application/json", `{`, "unexpected end"},
		"a field too many":          {"GET", "/alive", 200, "application/json", `{"status": "ok", "more": 1}`, "more"},
		"a field of another type":   {"GET", "/alive", 200, "application/json", `{"status": 1}`, "type"},
		"a field too few":           {"GET", "/alive", 200, "application/json", `{}`, "required"},
		"an undocumented media":     {"GET", "/alive", 200, "text/html", `{"status": "ok"}`, "no content of type"},
		"no media":                  {"GET", "/alive", 200, "", `{"status": "ok"}`, "Content-Type"},
		"an undocumented status":    {"GET", "/alive", 418, "application/json", `{"status": "ok"}`, "no such status"},
		"an undocumented path":      {"GET", "/nothing", 200, "application/json", `{}`, "no such operation"},
		"a path that is not there":  {"GET", "/nothing", 404, "text/plain", "", ""},
		"a method that is not":      {"PUT", "/alive", 405, "text/plain", "", ""},
		"an undocumented method":    {"PUT", "/alive", 200, "application/json", `{}`, "no such operation"},
		"an answer by reference":    {"POST", "/api/conversations", 200, "application/json", conversation, ""},
		"a referenced type is kept": {"POST", "/api/conversations", 200, "application/json", `{"conversation_id": 1}`, "type"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(httptest.NewRequest(test.method, test.path, nil), test.code,
				http.Header{"Content-Type": {test.header}}, test.body)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func TestHeadersAreCheckedAgainstTheContract(t *testing.T) {
	for value, valid := range map[string]bool{"": true, "1": true, "0": false, "soon": false} {
		header := http.Header{"Content-Type": {"application/json"}, "Retry-After": {value}}
		err := Check(httptest.NewRequest("GET", "/ready", nil), 503, header, `{"status": "error"}`)
		if (err == nil) != valid {
			t.Errorf("Retry-After %q: %v", value, err)
		}
	}
}
