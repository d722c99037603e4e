// Package page serves the web page. Its files are plain modules: they need no build step and load
// nothing from other hosts.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"time"
)

//go:embed files
var embedded embed.FS

// policy allows only the page's own scripts, styles and calls. The facade already sanitizes texts
// of conversations; the policy is a second defence.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Register serves the page at / and at /signin. A sign-in link has its code after the #, which
// browsers do not send.
func Register(mux *http.ServeMux) error {
	files, err := fs.Sub(embedded, "files")
	if err != nil {
		return err
	}
	version := sha256.New()
	if err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		_, _ = version.Write(content) // never fails
		return err
	}); err != nil {
		return err
	}
	tag := `"` + hex.EncodeToString(version.Sum(nil)[:12]) + `"`
	serve := func(w http.ResponseWriter, r *http.Request, name string) {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		// A browser revalidates each time, so that all files are of one version.
		header.Set("Cache-Control", "no-cache")
		header.Set("ETag", tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	}
	index := func(w http.ResponseWriter, r *http.Request) { serve(w, r, "index.html") }
	mux.HandleFunc("GET /{$}", index)
	mux.HandleFunc("GET /signin", index)
	mux.HandleFunc("GET /page/{name}", func(w http.ResponseWriter, r *http.Request) { serve(w, r, r.PathValue("name")) })
	return nil
}
