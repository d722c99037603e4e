package page

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func served(t *testing.T, files fs.FS) *http.ServeMux {
	t.Helper()
	mux := http.NewServeMux()
	err := Register(mux)
	if files != nil {
		mux = http.NewServeMux()
		err = register(mux, files)
	}
	if err != nil {
		t.Fatal(err)
	}
	return mux
}

func get(t *testing.T, mux *http.ServeMux, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

func versionIn(t *testing.T, mux *http.ServeMux) string {
	t.Helper()
	found := regexp.MustCompile(`/page/([0-9a-f]{24})/app\.js`).FindStringSubmatch(get(t, mux, "/").Body.String())
	if found == nil {
		t.Fatalf("the page loads no version: %s", get(t, mux, "/").Body)
	}
	return found[1]
}

func TestThePageIsServedWithAStrictContentSecurityPolicy(t *testing.T) {
	mux := served(t, nil)
	at := "/page/" + versionIn(t, mux)
	for path, want := range map[string]struct{ kind, caching string }{
		"/": {"text/html", "no-store"}, "/signin": {"text/html", "no-store"},
		"/page/reload.js": {"text/javascript", "no-store"},
		at + "/app.js":    {"text/javascript", "immutable"}, at + "/page.css": {"text/css", "immutable"},
		at + "/icon.svg": {"image/svg+xml", "immutable"},
	} {
		w := get(t, mux, path)
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), want.kind) {
			t.Errorf("%s: answered %d, %s", path, w.Code, w.Header().Get("Content-Type"))
		}
		if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none';") ||
			strings.Contains(got, "unsafe") {
			t.Errorf("%s: the policy is %s", path, got)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: nosniff is missing", path)
		}
		if got := w.Header().Get("Cache-Control"); !strings.HasSuffix(got, want.caching) {
			t.Errorf("%s: caching is %s", path, got)
		}
		if strings.Contains(w.Body.String(), "VERSION") {
			t.Errorf("%s: the version is missing", path)
		}
	}
	for _, path := range []string{"/page/", at, at + "/", at + "/none.js", at + "/..%2fpage.go", "/else"} {
		if w := get(t, mux, path); w.Code != http.StatusNotFound {
			t.Errorf("%s: answered %d", path, w.Code)
		}
	}
}

// During an update, the requests for the files of one page may reach facades of two versions.
func TestThePageNeverMixesFilesOfTwoVersions(t *testing.T) {
	next := fstest.MapFS{}
	entries, err := embedded.ReadDir("files")
	for _, entry := range entries {
		content, readErr := embedded.ReadFile("files/" + entry.Name())
		err = errors.Join(err, readErr)
		next[entry.Name()] = &fstest.MapFile{Data: content}
	}
	if err != nil {
		t.Fatal(err)
	}
	next["text.js"] = &fstest.MapFile{Data: append(next["text.js"].Data, "// changed\n"...)}
	before, after := served(t, nil), served(t, next)
	old, young := versionIn(t, before), versionIn(t, after)
	if old == young {
		t.Fatal("a changed file does not change the version")
	}
	for name := range next {
		if w := get(t, after, "/page/"+old+"/"+name); w.Code != http.StatusNotFound ||
			w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s of the other version: answered %d, %s", name, w.Code, w.Header().Get("Cache-Control"))
		}
		if w := get(t, after, "/page/"+young+"/"+name); w.Code != http.StatusOK {
			t.Errorf("%s: answered %d", name, w.Code)
		}
	}
}

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
	loads := regexp.MustCompile(`(?:from '\./|/page/(?:VERSION/)?)([a-z]+\.[a-z]+)`)
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
		if strings.Contains(content, "session_api_key") || strings.Contains(content, "WebSocket") {
			t.Errorf("%s may send a key in a URL", name)
		}
	}
}
