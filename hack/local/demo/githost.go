package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const repositoryName = "demo/hello"

type pullRequest struct {
	Title string `json:"title"`
	Body  string `json:"body"`
	Head  string `json:"head"`
	Base  string `json:"base"`
}

// gitHost is a stub of a git host on loopback: real git over HTTP, and the calls of Gitea's API that
// open a pull request. All requests need the token.
type gitHost struct {
	address, token string
	dir            string // directory of the repository

	mu    sync.Mutex
	pulls []pullRequest
}

// serveGitHost serves the repositories below root until the program ends.
func serveGitHost(ctx context.Context, root string) (*gitHost, error) {
	libexec, err := exec.CommandContext(ctx, "git", "--exec-path").Output()
	if err != nil {
		return nil, fmt.Errorf("serve the git host: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve the git host: %w", err)
	}
	h := &gitHost{address: listener.Addr().String(), token: rand.Text(), dir: filepath.Join(root, repositoryName+".git")}
	mux := http.NewServeMux()
	mux.Handle("/"+repositoryName+".git/", &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(libexec)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=demo", "HOME=" + root}})
	mux.HandleFunc("GET /api/v1/version", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"version": "a stub in make demo"})
	})
	mux.HandleFunc("GET /api/v1/repos/"+repositoryName, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"default_branch": "main"})
	})
	mux.HandleFunc("POST /api/v1/repos/"+repositoryName+"/pulls", h.open)
	server := &http.Server{Handler: h.authorized(mux), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return h, nil
}

// authorized refuses requests without the token. git sends the token as a password, and API clients
// send it after a scheme such as "token".
func (h *gitHost) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, token, isBasic := r.BasicAuth()
		if !isBasic {
			_, token, _ = strings.Cut(r.Header.Get("Authorization"), " ")
		}
		if subtle.ConstantTimeCompare([]byte(token), []byte(h.token)) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			answer(w, http.StatusUnauthorized, map[string]string{"message": "the token is wrong"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// open opens a pull request. Its branch must exist.
func (h *gitHost) open(w http.ResponseWriter, r *http.Request) {
	var pull pullRequest
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&pull)
	if err == nil {
		err = h.hasBranch(r.Context(), pull.Head)
	}
	if err != nil {
		answer(w, http.StatusUnprocessableEntity, map[string]string{"message": err.Error()})
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pulls = append(h.pulls, pull)
	answer(w, http.StatusCreated, map[string]string{"html_url": h.link(len(h.pulls))})
}

func (h *gitHost) hasBranch(ctx context.Context, name string) error {
	if exec.CommandContext(ctx, "git", "--git-dir", h.dir, "show-ref", "--verify", "--quiet", "refs/heads/"+name).
		Run() != nil {
		return errors.New("head: the repository has no such branch")
	}
	return nil
}

func (h *gitHost) last() (pull pullRequest, link string, exists bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pulls) == 0 {
		return pull, "", false
	}
	return h.pulls[len(h.pulls)-1], h.link(len(h.pulls)), true
}

func (h *gitHost) link(number int) string { return fmt.Sprintf("%s/pulls/%d", h.url(), number) }

func (h *gitHost) url() string { return "http://" + h.address + "/" + repositoryName }

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}
