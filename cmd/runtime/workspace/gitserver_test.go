package workspace_test

import (
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

const (
	token = "ghp_0123456789abcdefTOKEN"
	user  = "x-access-token"
)

// gitServer is a real git server over HTTP: private/… requires the token, forbidden/… denies all
// requests, busy/… fails.
type gitServer struct {
	*httptest.Server
	root string
	// authenticated and anonymous count the requests with and without credentials.
	authenticated, anonymous atomic.Int32
	// user and password for private/…
	user, password string
	// during is called in the middle of a clone.
	during atomic.Pointer[func()]
}

func newGitServer(t *testing.T) *gitServer {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal("git is not installed")
	}
	libexec, err := exec.Command(git, "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &gitServer{root: t.TempDir(), user: user, password: token}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(libexec)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + s.root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=somebody", "HOME=" + s.root},
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, shown := r.BasicAuth()
		if shown {
			s.authenticated.Add(1)
		} else {
			s.anonymous.Add(1)
		}
		switch {
		case strings.HasPrefix(r.URL.Path, "/forbidden/"):
			http.Error(w, "no", http.StatusForbidden)
			return
		case strings.HasPrefix(r.URL.Path, "/busy/"):
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		case strings.HasPrefix(r.URL.Path, "/private/") && (name != s.user || password != s.password):
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		if during := s.during.Load(); during != nil && r.Method == http.MethodPost {
			(*during)()
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// failure answers a request instead of next.
type failure func(w http.ResponseWriter, r *http.Request, next http.Handler)

// failOnce makes the first request of a method fail.
func (s *gitServer) failOnce(method string, fail failure) {
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

func (s *gitServer) setDuring(during func()) {
	if during == nil {
		s.during.Store(nil)
		return
	}
	s.during.Store(&during)
}

func (s *gitServer) host() string { return strings.TrimPrefix(s.URL, "http://") }

// create creates a bare repository with the branches main and feature, each with a file of its
// name, and some history.
func (s *gitServer) create(t *testing.T, name string) {
	t.Helper()
	work := t.TempDir()
	run(t, work, "git", "init", "-q", "-b", "main")
	commit(t, work, "README.md", "first")
	commit(t, work, "main", "second")
	run(t, work, "git", "checkout", "-q", "-b", "feature")
	commit(t, work, "feature", "third")
	bare := filepath.Join(s.root, name)
	run(t, work, "git", "clone", "-q", "--bare", work, bare)
	run(t, bare, "git", "symbolic-ref", "HEAD", "refs/heads/main")
	run(t, bare, "git", "config", "http.receivepack", "true")
}

func (s *gitServer) createEmpty(t *testing.T, name string) {
	t.Helper()
	run(t, s.root, "git", "init", "-q", "--bare", "-b", "main", filepath.Join(s.root, name))
}

func commit(t *testing.T, dir, file, message string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(message+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "git", "add", ".")
	run(t, dir, "git", "-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "-q", "-m", message)
}

// run runs a command without this machine's git configuration.
func run(t *testing.T, dir string, command ...string) string {
	t.Helper()
	return runIn(t, dir, t.TempDir(), command...)
}

func runIn(t *testing.T, dir, home string, command ...string) string {
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
