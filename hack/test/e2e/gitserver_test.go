package e2e

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

const gitBackend = "/usr/lib/git-core/git-http-backend"

// repository is a repository on a Git server that requires a token.
type repository struct {
	host   string // host and port of the server
	url    string
	branch string // not the default branch
	commit string // the latest commit on the branch
}

// gitServer serves a repository over HTTP. Requests need the token.
func (t *t) gitServer(token string) repository {
	root, err := os.MkdirTemp(t.state, "git-")
	t.must(err)
	work, bare := filepath.Join(root, "work"), filepath.Join(root, "srv", "team", "widgets.git")
	commit := t.makeRepository(work, bare)

	backend := gitHandler(root)
	host := t.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); token != "" && password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	return repository{host: host, url: fmt.Sprintf("http://%s/team/widgets.git", host), branch: "feature", commit: commit}
}

// manyFiles serves a public repository with many files. It caches its responses. Otherwise, a git
// process would run for each request and compete with the measured sessions for the CPU.
func (t *t) manyFiles() repository {
	root, err := os.MkdirTemp(t.state, "git-")
	t.must(err)
	work, bare := filepath.Join(root, "work"), filepath.Join(root, "srv", "team", "widgets.git")
	for i := range fileCount {
		dir := filepath.Join(work, fmt.Sprintf("part%d", i%10))
		t.must(os.MkdirAll(dir, 0o700))
		t.must(os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%d.go", i)), []byte(strings.Repeat(fmt.Sprintf(
			"// line of file %d\n", i), 200)), 0o600))
	}
	commit := t.makeRepository(work, bare)
	host := t.serve(withCache(gitHandler(root)))
	return repository{host: host, url: fmt.Sprintf("http://%s/team/widgets.git", host), branch: "feature", commit: commit}
}

// withCache returns a handler that answers a repeated request with the first response.
func withCache(next http.Handler) http.Handler {
	var known sync.Map
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key := fmt.Sprint(r.Method, r.URL, r.Header.Get("Git-Protocol"), r.Header.Get("Content-Encoding"), string(body))
		found, is := known.Load(key)
		if !is {
			recorder := httptest.NewRecorder()
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
			next.ServeHTTP(recorder, r)
			found, _ = known.LoadOrStore(key, recorder)
		}
		response := found.(*httptest.ResponseRecorder)
		maps.Copy(w.Header(), response.Header())
		w.WriteHeader(response.Code)
		_, _ = w.Write(response.Body.Bytes())
	})
}

func gitHandler(root string) http.Handler {
	return &cgi.Handler{
		Path: gitBackend, Dir: root,
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Join(root, "srv"), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
}

func (t *t) makeRepository(work, bare string) string {
	t.must(os.MkdirAll(work, 0o700))
	git := func(args ...string) string {
		cmd := exec.CommandContext(t.ctx, "git", append([]string{"-C", work, "-c", "user.name=e2e", "-c",
			"user.email=e2e@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+runDir, "GIT_CONFIG_NOSYSTEM=1")
		output, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v: %s", args[0], err, output)
		}
		return strings.TrimSpace(string(output))
	}
	git("init", "--quiet", "--initial-branch=main")
	for _, branch := range []string{"main", "feature"} {
		if branch != "main" {
			git("checkout", "--quiet", "-b", branch)
		}
		t.must(os.WriteFile(filepath.Join(work, "branch.txt"), []byte(branch+"\n"), 0o600))
		git("add", "--all")
		git("commit", "--quiet", "--message=Add "+branch)
	}
	git("clone", "--quiet", "--bare", work, bare)
	return git("rev-parse", "feature")
}
