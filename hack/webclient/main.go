// Command webclient serves the web client of the existing service beside a facade, under one
// origin, to try the two together. The client is built from its own source, and its build directory
// is given. Whoever opens it is the user whose key it has, so it listens on loopback.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/rest"
)

func main() {
	build := flag.String("build", "", "directory that the web client was built into")
	facade := flag.String("facade", "http://127.0.0.1:3000", "address of the facade")
	keyFile := flag.String("key-file", filepath.Join(".local", "session-key"), "file with the session key of the user")
	address := flag.String("bind-address", "127.0.0.1:3002", "where to serve both")
	flag.Parse()
	if err := run(*build, *facade, *keyFile, *address); err != nil {
		fmt.Fprintln(os.Stderr, "webclient:", err)
		os.Exit(1)
	}
}

func run(build, facade, keyFile, address string) error {
	if _, err := os.Stat(filepath.Join(build, "index.html")); err != nil {
		return fmt.Errorf("--build: %w", err)
	}
	target, err := url.Parse(facade)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", listener.Addr())
	server := &http.Server{Handler: handler(build, target, strings.TrimSpace(string(key))),
		ReadHeaderTimeout: 10 * time.Second}
	return server.Serve(listener)
}

func handler(build string, facade *url.URL, key string) http.Handler {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(facade)
		r.Out.Host = r.In.Host // which the facade compares with the origin
		r.Out.Header.Set(rest.KeyHeader, key)
	}}
	files := http.FileServer(http.Dir(build))
	mux := http.NewServeMux()
	mux.Handle("/api/", proxy)
	mux.Handle("/socket.io/", proxy)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		// The client has paths of its own, all on one page.
		if _, err := os.Stat(filepath.Join(build, filepath.FromSlash(path.Clean("/"+r.URL.Path)))); err != nil {
			r.URL.Path = "/"
		}
		files.ServeHTTP(w, r)
	})
	return mux
}
