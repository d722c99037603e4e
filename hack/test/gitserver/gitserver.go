// Package gitserver runs a real Git server over HTTP for tests.
package gitserver

import (
	"bytes"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// Token and User are the default credentials of private repositories.
const (
	Token = "ghp_0123456789abcdefTOKEN"
	User  = "x-access-token"
)

// Server serves the repositories in the directory Root. Repositories below private/ require
// credentials. Requests for forbidden/ get status 403, and requests for busy/ get status 503.
type Server struct {
	*httptest.Server
	Root string
	// Authenticated and Anonymous count requests with and without credentials.
	Authenticated, Anonymous atomic.Int32
	// User and Password are the credentials for repositories below private/.
	User, Password string
	api            atomic.Pointer[http.Handler]
	// redirect, if set, returns the new URL for a request, or an empty text.
	redirect atomic.Pointer[func(*http.Request) string]
	// onPost is called for each POST request, for example in the middle of a clone.
	onPost atomic.Pointer[func()]
}

// ServeAPI lets a handler serve Git LFS and all paths outside Git repositories.
func (s *Server) ServeAPI(api http.Handler) { s.api.Store(&api) }

// Redirect redirects requests to the URLs that a function returns. An empty text means no redirect.
func (s *Server) Redirect(to func(*http.Request) string) { s.redirect.Store(&to) }

// New starts a server.
func New(t *testing.T) *Server {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal("git is not installed")
	}
	libexec, err := exec.Command(git, "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Root: t.TempDir(), User: User, Password: Token}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(libexec)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + s.Root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=somebody", "HOME=" + s.Root},
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, shown := r.BasicAuth()
		if shown {
			s.Authenticated.Add(1)
		} else {
			s.Anonymous.Add(1)
		}
		switch {
		case strings.HasPrefix(r.URL.Path, "/forbidden/"):
			http.Error(w, "no", http.StatusForbidden)
			return
		case strings.HasPrefix(r.URL.Path, "/busy/"):
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		case strings.HasPrefix(r.URL.Path, "/private/") && (name != s.User || password != s.Password):
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		if onPost := s.onPost.Load(); onPost != nil && r.Method == http.MethodPost {
			(*onPost)()
		}
		if redirect := s.redirect.Load(); redirect != nil {
			if to := (*redirect)(r); to != "" {
				http.Redirect(w, r, to, http.StatusFound)
				return
			}
		}
		if api := s.api.Load(); api != nil &&
			(!strings.Contains(r.URL.Path, ".git/") || strings.Contains(r.URL.Path, "/info/lfs/")) {
			(*api).ServeHTTP(w, r)
			return
		}
		serve(backend, w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// serve forwards a request to Git. CGI needs the length of the body, so a body of unknown length is
// read first.
func serve(backend http.Handler, w http.ResponseWriter, r *http.Request) {
	if r.ContentLength < 0 {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	}
	backend.ServeHTTP(w, r)
}

// Failure responds to a request that must fail. It may also call next, the normal handler.
type Failure func(w http.ResponseWriter, r *http.Request, next http.Handler)

// FailOnce lets the first request with this method fail.
func (s *Server) FailOnce(method string, fail Failure) {
	var failed atomic.Bool
	normal := s.Config.Handler
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method && failed.CompareAndSwap(false, true) {
			fail(w, r, normal)
			return
		}
		normal.ServeHTTP(w, r)
	})
}

// SetDuring sets a function that is called in the middle of a clone. Nil removes the function.
func (s *Server) SetDuring(during func()) {
	if during == nil {
		s.onPost.Store(nil)
		return
	}
	s.onPost.Store(&during)
}

// Host returns the host and port.
func (s *Server) Host() string { return strings.TrimPrefix(s.URL, "http://") }

// Create creates a bare repository with the branches main and feature. Each branch has a file that
// is named like the branch.
func (s *Server) Create(t *testing.T, name string) {
	t.Helper()
	work := t.TempDir()
	Run(t, work, "git", "init", "-q", "-b", "main")
	Commit(t, work, "README.md", "first")
	Commit(t, work, "main", "second")
	Run(t, work, "git", "checkout", "-q", "-b", "feature")
	Commit(t, work, "feature", "third")
	bare := filepath.Join(s.Root, name)
	Run(t, work, "git", "clone", "-q", "--bare", work, bare)
	Run(t, bare, "git", "symbolic-ref", "HEAD", "refs/heads/main")
	Run(t, bare, "git", "config", "http.receivepack", "true")
}

// CreateEmpty creates a bare repository without commits.
func (s *Server) CreateEmpty(t *testing.T, name string) {
	t.Helper()
	Run(t, s.Root, "git", "init", "-q", "--bare", "-b", "main", filepath.Join(s.Root, name))
}

// Commit writes the message to a file and commits the file.
func Commit(t *testing.T, dir, file, message string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(message+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	Run(t, dir, "git", "add", ".")
	Run(t, dir, "git", "-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "-q", "-m", message)
}

// Run runs a command in a directory. It ignores this machine's Git configuration.
func Run(t *testing.T, dir string, command ...string) string {
	t.Helper()
	return RunIn(t, dir, t.TempDir(), command...)
}

// RunIn is like Run, but uses the given home directory.
func RunIn(t *testing.T, dir, home string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+home, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "XDG_CONFIG_HOME="+home)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", command, err, output)
	}
	return strings.TrimSpace(string(output))
}
