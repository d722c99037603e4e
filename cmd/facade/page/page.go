// Package page is what a person opens in a browser. It is served as it is written: plain modules
// that nothing has to build, and that load nothing from elsewhere.
package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"strings"
	"time"
)

//go:embed files
var embedded embed.FS

// policy of the page: its own scripts, styles and calls, and nothing else. What is written in
// conversations is rendered by the facade and checked there; this holds where that fails.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// file of the page.
type file struct {
	name, content, tag string
}

// Register the page: at /, and at /signin for links that sign in by what follows the #, which
// browsers keep to themselves.
func Register(mux *http.ServeMux) error {
	files, err := read()
	if err != nil {
		return err
	}
	mux.Handle("GET /{$}", files["index.html"])
	mux.Handle("GET /signin", files["index.html"])
	mux.HandleFunc("GET /page/{name}", func(w http.ResponseWriter, r *http.Request) {
		f, found := files[r.PathValue("name")]
		if !found {
			http.NotFound(w, r)
			return
		}
		f.ServeHTTP(w, r)
	})
	return nil
}

func read() (map[string]*file, error) {
	files := map[string]*file{}
	entries, err := fs.ReadDir(embedded, "files")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		content, err := fs.ReadFile(embedded, "files/"+entry.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		files[entry.Name()] = &file{entry.Name(), string(content), `"` + hex.EncodeToString(sum[:12]) + `"`}
	}
	return files, nil
}

// ServeHTTP answers with the file, or with nothing where the browser has it already: it asks each
// time, so that the files are all of one version.
func (f *file) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-cache")
	header.Set("ETag", f.tag)
	http.ServeContent(w, r, f.name, time.Time{}, strings.NewReader(f.content))
}
