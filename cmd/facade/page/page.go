// Package page serves the web page. Its files are plain modules: they need no build step and load
// nothing from other hosts.
package page

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"
)

//go:embed files
var embedded embed.FS

// policy allows only the page's own scripts, styles and calls. The facade already sanitizes texts
// of conversations; the policy is a second defence.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// unversioned is the script that pages of all versions load from the same path.
const unversioned = "reload.js"

// Register serves the page at / and at /signin. The code of a sign-in link is after the #. Browsers
// do not send this part of the URL to the server.
func Register(mux *http.ServeMux) error {
	files, err := fs.Sub(embedded, "files")
	if err != nil {
		return err
	}
	return register(mux, files)
}

// register serves files of the page. Their paths contain the version: during an update, requests of
// one page may reach facades of two versions, and files of two versions must not mix. A facade
// responds with 404 to a request for a file of another version, and reload.js then recovers the
// page. index.html lists all modules, so that browsers load them in parallel.
func register(mux *http.ServeMux, files fs.FS) error {
	sum, modules := sha256.New(), []string{}
	if err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if strings.HasSuffix(path, ".js") && path != unversioned {
			modules = append(modules, `<link rel="modulepreload" href="/page/VERSION/`+path+`">`)
		}
		content, err := fs.ReadFile(files, path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(content), content) // never fails
		return err
	}); err != nil {
		return err
	}
	version := hex.EncodeToString(sum.Sum(nil)[:12])
	index, err := fs.ReadFile(files, "index.html")
	if err != nil {
		return err
	}
	index = bytes.ReplaceAll(index, []byte("<!-- MODULES -->"), []byte(strings.Join(modules, "\n")))
	index = bytes.ReplaceAll(index, []byte("VERSION"), []byte(version))
	serve := func(w http.ResponseWriter, r *http.Request, name, caching string, content []byte) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cache-Control", caching)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	}
	const never, forever = "no-store", "public, max-age=31536000, immutable"
	for _, path := range []string{"/{$}", "/signin"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			serve(w, r, "index.html", never, index)
		})
	}
	file := func(caching string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			name := cmp.Or(r.PathValue("name"), unversioned)
			content, err := fs.ReadFile(files, name)
			if given := r.PathValue("version"); err != nil || given != "" && given != version {
				w.Header().Set("Cache-Control", never) // another facade may have the file
				http.NotFound(w, r)
				return
			}
			serve(w, r, name, caching, content)
		}
	}
	mux.HandleFunc("GET /page/{version}/{name}", file(forever))
	mux.HandleFunc("GET /page/"+unversioned, file(never))
	return nil
}
