//go:build gitops

package gitops

import (
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// gitServer serves a repository over HTTP. Commits are made in the work tree.
type gitServer struct {
	t         *testing.T
	work, url string
}

func newGitServer(t *testing.T) *gitServer {
	t.Helper()
	root := t.TempDir()
	g := &gitServer{t: t, work: filepath.Join(root, "work")}
	path, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(g.work, 0o700); err != nil {
		t.Fatal(err)
	}
	g.git("init", "--quiet", "--initial-branch=main")
	g.git("init", "--quiet", "--bare", "--initial-branch=main", filepath.Join(root, "srv", "sessions.git"))
	g.git("remote", "add", "origin", filepath.Join(root, "srv", "sessions.git"))
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(path)), "git-http-backend"), Dir: root,
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Join(root, "srv"), "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	})
	t.Cleanup(server.Close)
	g.url = server.URL + "/sessions.git"
	return g
}

// commit writes, commits and pushes files. It deletes a file if the content is empty.
func (g *gitServer) commit(files map[string]string) {
	g.t.Helper()
	for name, content := range files {
		file := filepath.Join(g.work, name)
		if content == "" {
			g.git("rm", "--quiet", name)
			continue
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			g.t.Fatal(err)
		}
	}
	g.git("add", "--all")
	g.git("commit", "--quiet", "--message=Change the sessions")
	g.git("push", "--quiet", "origin", "main")
}

func (g *gitServer) git(args ...string) {
	g.t.Helper()
	command := exec.Command("git", append([]string{"-C", g.work, "-c", "user.name=ada", "-c",
		"user.email=ada@example.com"}, args...)...)
	command.Env = append(os.Environ(), "HOME="+g.work, "GIT_CONFIG_NOSYSTEM=1")
	if output, err := command.CombinedOutput(); err != nil {
		g.t.Fatalf("git %s: %v: %s", args[0], err, output)
	}
}
