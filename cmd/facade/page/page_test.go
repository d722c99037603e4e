package page

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func get(t *testing.T, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	mux := http.NewServeMux()
	if err := Register(mux); err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	return w
}

func TestThePageIsServedWithAStrictPolicy(t *testing.T) {
	for path, kind := range map[string]string{
		"/": "text/html", "/signin": "text/html", "/page/app.js": "text/javascript", "/page/page.css": "text/css",
		"/page/icon.svg": "image/svg+xml",
	} {
		w := get(t, path)
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) {
			t.Errorf("%s: answered %d, %s", path, w.Code, w.Header().Get("Content-Type"))
		}
		if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none';") ||
			strings.Contains(got, "unsafe") {
			t.Errorf("%s: the policy is %s", path, got)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: nosniff is missing", path)
		}
		if again := get(t, path, "If-None-Match", w.Header().Get("ETag")); again.Code != http.StatusNotModified {
			t.Errorf("%s: an unchanged file is sent again: %d", path, again.Code)
		}
	}
	for _, path := range []string{"/page/", "/page/none.js", "/page/..%2fpage.go", "/else"} {
		if w := get(t, path); w.Code != http.StatusNotFound {
			t.Errorf("%s: answered %d", path, w.Code)
		}
	}
}

// Files stay short and load only other files of the page.
func TestPageFilesAreShortAndLoadOnlyPageFiles(t *testing.T) {
	files := map[string]string{}
	entries, err := embedded.ReadDir("files")
	for _, entry := range entries {
		content, readErr := embedded.ReadFile("files/" + entry.Name())
		err = errors.Join(err, readErr)
		files[entry.Name()] = string(content)
	}
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	loads := regexp.MustCompile(`(?:from '\./|/page/)([a-z]+\.[a-z]+)`)
	elsewhere := regexp.MustCompile(`(?:src|href|from|import|url)\s*[=(]?\s*['"](?:https?:)?//`)
	for name, content := range files {
		if lines := strings.Count(content, "\n"); lines > 300 {
			t.Errorf("%s has %d lines", name, lines)
		}
		for _, match := range loads.FindAllStringSubmatch(content, -1) {
			if files[match[1]] == "" {
				t.Errorf("%s loads %s, which does not exist", name, match[1])
			}
		}
		if found := elsewhere.FindString(content); found != "" {
			t.Errorf("%s loads from another host: %s", name, found)
		}
		if strings.Contains(content, "innerHTML") && name != "markdown.js" {
			t.Errorf("%s writes HTML", name)
		}
	}
}
