//go:build gitea

package integration_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// giteaVariable is the environment variable with the path of the directory that `make gitea`
// creates.
const giteaVariable = "PARLEY_GITEA"

// gitea is a running Gitea with the private repository ada/site.
type gitea struct{ host, token string }

func startGitea(t *testing.T) *gitea {
	t.Helper()
	assets, dir := os.Getenv(giteaVariable), t.TempDir()
	if assets == "" {
		t.Fatalf("%s is not set: run make e2e-git", giteaVariable)
	}
	g := &gitea{host: facadeenv.FreeAddress()}
	address, port, _ := strings.Cut(g.host, ":")
	config := filepath.Join(dir, "app.ini")
	if err := os.WriteFile(config, fmt.Appendf(nil, `I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = %[1]s
[server]
HTTP_ADDR = %[2]s
HTTP_PORT = %[3]s
ROOT_URL = http://%[2]s:%[3]s/
STATIC_ROOT_PATH = %[4]s
DISABLE_SSH = true
LFS_START_SERVER = true
[database]
DB_TYPE = sqlite3
[security]
INSTALL_LOCK = true
[log]
LEVEL = Error
`, dir, address, port, assets), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(assets, "gitea"), append(args, "--config", config)...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "GITEA_WORK_DIR="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	if output, err := command("migrate").CombinedOutput(); err != nil {
		t.Fatalf("create Gitea's database: %v\n%s", err, output)
	}
	g.token = createGiteaUser(t, command)
	web := command("web")
	if err := web.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = web.Process.Kill(); _ = web.Wait() })
	testenv.Await(t, func() error { return g.call(http.MethodGet, "/version", "", nil) })
	if err := g.call(http.MethodPost, "/user/repos",
		`{"name":"site","auto_init":true,"default_branch":"main","private":true}`, nil); err != nil {
		t.Fatal(err)
	}
	return g
}

// createGiteaUser creates the user and returns their token, which is the last word of the output.
func createGiteaUser(t *testing.T, command func(args ...string) *exec.Cmd) (token string) {
	t.Helper()
	output, err := command("admin", "user", "create", "--username", "ada", "--password", "Engine-1843", "--email",
		"ada@example.com", "--must-change-password=false", "--access-token", "--access-token-scopes", "all").CombinedOutput()
	if err != nil {
		t.Fatalf("create a user of Gitea: %v\n%s", err, output)
	}
	for line := range strings.Lines(string(output)) {
		if words := strings.Fields(line); strings.Contains(line, "successfully created") && strings.Contains(line, "oken") {
			token = words[len(words)-1]
		}
	}
	if len(token) < 20 {
		t.Fatalf("Gitea's output has no token:\n%s", output)
	}
	return token
}

func (g *gitea) call(method, path, body string, into any) error {
	request, err := http.NewRequest(method, "http://"+g.host+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "token "+g.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s %s", method, path, response.Status, text)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

// pulls returns the open pull requests as "number title: branch into base", oldest first.
func (g *gitea) pulls(t *testing.T) (list []string) {
	t.Helper()
	var pulls []struct {
		Number     int
		Title      string
		Head, Base struct{ Ref string }
	}
	if err := g.call(http.MethodGet, "/repos/ada/site/pulls?state=open&sort=oldest", "", &pulls); err != nil {
		t.Fatal(err)
	}
	for _, p := range pulls {
		list = append(list, fmt.Sprintf("%d %s: %s into %s", p.Number, p.Title, p.Head.Ref, p.Base.Ref))
	}
	return list
}

func (g *gitea) link(number int) string {
	return fmt.Sprintf("http://%s/ada/site/pulls/%d", g.host, number)
}
