package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// giteaVariable names a directory with Gitea's source and the program gitea.
const giteaVariable = "PARLEY_GITEA"

// realGitea is a running Gitea with the repository ada/site.
type realGitea struct{ host, token string }

func startGitea(t *testing.T) *realGitea {
	t.Helper()
	source := os.Getenv(giteaVariable)
	if source == "" {
		t.Skip(giteaVariable + " is not set")
	}
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &realGitea{host: listener.Addr().String()}
	_ = listener.Close()
	_, port, _ := net.SplitHostPort(g.host)
	config := filepath.Join(dir, "app.ini")
	write(t, config, fmt.Sprintf(`I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = %[1]s
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = %[2]s
ROOT_URL = http://127.0.0.1:%[2]s/
STATIC_ROOT_PATH = %[3]s
DISABLE_SSH = true
LFS_START_SERVER = true
[database]
DB_TYPE = sqlite3
[security]
INSTALL_LOCK = true
[log]
LEVEL = Error
`, dir, port, source))
	program := filepath.Join(source, "gitea")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, append(args, "--config", config)...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "GITEA_WORK_DIR="+dir)
		return cmd
	}
	if output, err := command("migrate").CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, output)
	}
	output, err := command("admin", "user", "create", "--username", "ada", "--password", "Engine-1843", "--email",
		"ada@example.com", "--must-change-password=false", "--access-token", "--access-token-scopes", "all").CombinedOutput()
	if err != nil {
		t.Fatalf("create a user: %v\n%s", err, output)
	}
	for line := range strings.Lines(string(output)) {
		if _, token, ok := strings.Cut(line, "successfully created"); ok {
			g.token = strings.TrimSpace(token[strings.LastIndex(token, " ")+1:])
		}
	}
	web := command("web")
	web.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := web.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = web.Process.Kill(); _ = web.Wait() })
	eventually(t, "Gitea answers", func() bool { return g.call(http.MethodGet, "/version", "", nil) == http.StatusOK })
	if code := g.call(http.MethodPost, "/user/repos",
		`{"name":"site","auto_init":true,"default_branch":"main","private":true}`,
		nil); code != http.StatusCreated {
		t.Fatalf("creating the repository is answered with %d\n%s", code, output)
	}
	return g
}

// call calls Gitea's API. It returns the HTTP status, or 0 if there was no response.
func (g *realGitea) call(method, path, body string, into any) int {
	request, err := http.NewRequest(method, "http://"+g.host+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		return 0
	}
	request.Header.Set("Authorization", "token "+g.token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if into != nil {
		_ = json.Unmarshal(text, into)
	}
	return response.StatusCode
}

// largeFile pushes a file with LFS, and then clones the repository by its SSH URL. It does nothing
// if LFS is not installed.
const largeFile = `if command -v git-lfs; then
	git lfs install && git lfs track '*.bin' && echo large > a.bin && git add . && git commit -q -m lfs &&
	git push -q origin fix && git clone -q -b fix git@127.0.0.1:ada/site.git ../again && sed s/^/lfs-/ ../again/a.bin
fi`

func TestTheAgentOpensAPullRequestOnARealGitea(t *testing.T) {
	g := startGitea(t)
	p, _ := scripted(t, func(d *session.Document) {
		d.Repository = &session.Repository{Name: "http://" + g.host + "/ada/site.git", Host: g.host,
			Provider: v1alpha1.EnterpriseSSO, TokenFile: session.ProviderTokenFile}
	}, calls(bash("git config --global user.name Ada; git config --global user.email ada@example.com; "+commitOnABranch)),
		calls(pullRequest("Fix it")), calls(pullRequest("Fix it again")),
		calls(scriptedmodel.Call{Name: "comment", Input: scriptedmodel.Input(map[string]any{"number": 1, "body": "Done"})}),
		calls(scriptedmodel.Call{Name: "read_git_host", Input: scriptedmodel.Input(map[string]any{
			"path": "/issues/1/comments"})}),
		calls(bash(largeFile)), calls(bash("git fetch -q --all; echo more > more; git switch -q main")), says("Done."))
	p.secrets[session.ProviderTokenFile] = g.token
	p.start(t)
	eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
	lines := strings.Join(p.eventLines(t), "\n")
	link := "http://" + g.host + "/ada/site/pulls/1"
	if strings.Count(lines, "Pull request: "+link) < 1 || !strings.Contains(lines, link+"#issuecomment-") ||
		!strings.Contains(lines, `"body":"Done"`) {
		t.Errorf("the events are\n%s", lines)
	}
	if _, err := exec.LookPath("git-lfs"); err == nil && !strings.Contains(lines, "lfs-large") {
		t.Errorf("LFS failed:\n%s", lines)
	}
	if code, answer := p.publish(t, session.PullRequestPath, `{"title":"More"}`); code != http.StatusOK {
		t.Fatalf("the button is answered with %d %s", code, answer)
	}
	var pulls []struct {
		Title string
		Head  struct{ Ref string }
		Base  struct{ Ref string }
	}
	eventually(t, "both pull requests are open", func() bool {
		return g.call(http.MethodGet, "/repos/ada/site/pulls", "", &pulls) == http.StatusOK && len(pulls) == 2
	})
	if got := fmt.Sprint(pulls); got != "[{More {parley/hello} {main}} {Fix it {fix} {main}}]" {
		t.Errorf("the pull requests are %s", got)
	}
	p.hasNoToken(t)
}
