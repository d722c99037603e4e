package main_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/gitserver"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// forge is a git host with an API like Gitea's. It opens pull requests only for existing branches.
type forge struct {
	*gitserver.Server
	mu     sync.Mutex
	opened []map[string]string
}

func newForge(t *testing.T) *forge {
	t.Helper()
	f := &forge{Server: gitserver.New(t)}
	f.Create(t, "private/site.git")
	f.Password = secretValues[session.ProviderTokenFile]
	f.ServeAPI(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case r.Header.Get("Authorization") != "Bearer "+f.Password:
			http.Error(w, "{}", http.StatusUnauthorized)
		case r.URL.Path == "/api/v1/version":
			_, _ = io.WriteString(w, `{"version":"1.26.0"}`)
		case r.Method == http.MethodPost && r.URL.Path == "/api/v1/repos/private/site/pulls":
			var pull map[string]string
			_ = json.NewDecoder(r.Body).Decode(&pull)
			if f.head(pull["head"]) == "" {
				http.Error(w, `{"message":"the head branch does not exist"}`, http.StatusNotFound)
				return
			}
			f.opened = append(f.opened, pull)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"html_url":"%s/private/site/pulls/%d"}`, f.URL, len(f.opened))
		case r.Method == http.MethodPost && r.URL.Path == "/api/v1/repos/private/site/issues/1/comments":
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"html_url":"%s/private/site/pulls/1#issuecomment-1"}`, f.URL)
		default:
			http.Error(w, `{"message":"not found"}`, http.StatusNotFound)
		}
	}))
	return f
}

func (f *forge) head(branch string) string {
	text, _ := os.ReadFile(filepath.Join(f.Root, "private/site.git/refs/heads", branch))
	return strings.TrimSpace(string(text))
}

func (f *forge) pulls() []map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened
}

// onForge sets the session's repository to private/site on this host.
func onForge(f *forge) func(*session.Document) {
	return func(d *session.Document) {
		d.Repository = &session.Repository{Name: f.URL + "/private/site.git", Host: f.Host(), Branch: "main",
			Provider: v1alpha1.EnterpriseSSO, TokenFile: session.ProviderTokenFile, UserID: gitserver.User}
		d.Settings.GitUserName, d.Settings.GitUserEmail = new("Ada"), new("ada@example.com")
	}
}

const commitOnABranch = "git switch -q -c fix && echo fixed > fixed && git add . && git commit -q -m fixed"

func pullRequest(title string) scriptedmodel.Call {
	return scriptedmodel.Call{Name: "create_pull_request", Input: scriptedmodel.Input(map[string]any{"title": title,
		"body": "It was broken."})}
}

func TestTheAgentOpensAPullRequestButNeverGetsTheGitToken(t *testing.T) {
	t.Parallel()
	f := newForge(t)
	p, model := scripted(t, onForge(f), calls(bash(commitOnABranch)), calls(pullRequest("Fix it")),
		calls(scriptedmodel.Call{Name: "comment", Input: scriptedmodel.Input(map[string]any{"number": 1, "body": "Done"})}),
		says("Done."))
	p.start(t)
	eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
	lines := strings.Join(p.eventLines(t), "\n")
	pulls := f.pulls()
	if len(pulls) != 1 || pulls[0]["title"] != "Fix it" || pulls[0]["head"] != "fix" || pulls[0]["base"] != "main" ||
		pulls[0]["body"] != "It was broken." {
		t.Fatalf("the pull requests are %v\n%s", pulls, lines)
	}
	link := f.URL + "/private/site/pulls/1"
	if !strings.Contains(lines, "notice  Pull request: "+link) || !strings.Contains(lines, link+"#issuecomment-1") {
		t.Errorf("the events have no link:\n%s", lines)
	}
	if got, want := f.head("fix"), gitserver.Run(t, filepath.Join(p.workspace, "site"), "git", "rev-parse",
		"HEAD"); got != want {
		t.Errorf("the host has %s, not %s", got, want)
	}
	first := model.Requests()[0]
	if !first.Contains("of "+f.Host()+", branch main, is in") || !first.Contains("create_pull_request") {
		t.Error("the prompt does not name the repository's branch and host")
	}
	p.hasNoToken(t)
}

// hasNoToken checks that the git token is not in the agent's processes or in the session's files.
func (p *pod) hasNoToken(t *testing.T) {
	t.Helper()
	token := p.secrets[session.ProviderTokenFile]
	forms := []string{token, base64.StdEncoding.EncodeToString([]byte(gitserver.User + ":" + token))}
	search := func(where string, text []byte) {
		for _, form := range forms {
			if bytes.Contains(text, []byte(form)) {
				t.Errorf("%s has the token", where)
			}
		}
	}
	supervisor := p.cmd.Process.Pid
	agents := 0
	for _, runtime := range childrenOf(t, supervisor) {
		for pids := childrenOf(t, runtime); len(pids) > 0; pids = pids[1:] {
			agents++
			for _, file := range []string{"environ", "cmdline"} {
				name := fmt.Sprintf("/proc/%d/%s", pids[0], file)
				text, _ := os.ReadFile(name) // a process may have ended
				search(name, text)
			}
			pids = append(pids, childrenOf(t, pids[0])...)
		}
	}
	if agents == 0 {
		t.Error("no process of the agent was searched, so this test proves nothing")
	}
	for _, root := range []string{p.workspace, p.home, p.dir} {
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				text, _ := os.ReadFile(path)
				search(path, text)
			}
			return nil
		})
	}
	search("the log", []byte(p.output()))
}

func TestAPullRequestWaitsForTheUsersApproval(t *testing.T) {
	t.Parallel()
	f := newForge(t)
	p, _ := scripted(t, func(d *session.Document) {
		onForge(f)(d)
		d.Settings.ConfirmationMode = new(true)
	}, calls(bash(commitOnABranch)), calls(pullRequest("Fix it")), says("Done."))
	p.start(t)
	asked(session.StateConfirmed)(t, p) // approves the command
	eventually(t, "the agent asks about the pull request", func() bool {
		lines := p.eventLines(t)
		return strings.Contains(strings.Join(lines, "\n"), "create_pull_request") &&
			strings.Contains(lines[len(lines)-1], string(session.StateConfirmation))
	})
	if len(f.pulls()) > 0 || f.head("fix") != "" {
		t.Error("the agent pushed or opened a pull request without the approval")
	}
	p.answer(t, session.StateConfirmed)
	eventually(t, "the pull request is open", func() bool { return len(f.pulls()) == 1 })
}

func (p *pod) publish(t *testing.T, path, body string) (code int, answer string) {
	t.Helper()
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceSession, UID: "u1",
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestTheUserPublishesUncommittedChanges(t *testing.T) {
	t.Parallel()
	f := newForge(t)
	p, _ := scripted(t, onForge(f), calls(bash("echo changed > main; echo new > new")), says("Done."))
	p.start(t)
	eventually(t, "the turn is over", func() bool { return over(p.eventLines(t)) })
	main := f.head("main")
	if code, answer := p.publish(t, session.PullRequestPath, `{}`); code != http.StatusUnprocessableEntity {
		t.Errorf("without a title: %d %s", code, answer)
	}
	const body = `{"title":"Change main","body":"As asked."}`
	for range 2 { // the second request finds nothing to commit
		code, answer := p.publish(t, session.PushPath, body)
		if code != http.StatusOK {
			t.Fatalf("the push is answered with %d %s", code, answer)
		}
	}
	eventually(t, "the branch is pushed", func() bool { return f.head("parley/hello") != "" })
	var published session.Published
	code, answer := p.publish(t, session.PullRequestPath, body)
	if err := json.Unmarshal([]byte(answer), &published); err != nil || code != http.StatusOK {
		t.Fatalf("the pull request is answered with %d %s", code, answer)
	}
	eventually(t, "the pull request is open", func() bool { return len(f.pulls()) == 1 })
	if pull := f.pulls()[0]; pull["head"] != "parley/hello" || pull["base"] != "main" || pull["title"] != "Change main" {
		t.Errorf("the pull request is %v", pull)
	}
	if want := f.URL + "/private/site/pulls/1"; !published.Running && published.URL != want {
		t.Errorf("the link is %s", answer)
	}
	if f.head("main") != main {
		t.Error("the base branch was changed")
	}
	if status := gitserver.Run(t, filepath.Join(p.workspace, "site"), "git", "status", "--porcelain"); status != "" {
		t.Errorf("uncommitted: %s", status)
	}
	p.hasNoToken(t)
}

func TestTheSessionResultHasTheLinkOfThePullRequest(t *testing.T) {
	t.Parallel()
	f := newForge(t)
	p, _ := scripted(t, func(d *session.Document) {
		onForge(f)(d)
		d.OneShot = true
	}, calls(bash(commitOnABranch)), calls(pullRequest("Fix it")), says("Done."))
	p.start(t)
	code, got := p.wait(t)
	if want := f.URL + "/private/site/pulls/1"; code != 0 || got.Result == nil || got.Result.PullRequest != want {
		t.Errorf("it ended with status %d: %+v, %+v", code, got, got.Result)
	}
}
