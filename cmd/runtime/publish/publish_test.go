package publish_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/githost"
	"github.com/parley-dev/parley/cmd/runtime/publish"
	"github.com/parley-dev/parley/hack/test/gitserver"
)

// The git host accepts every pull request.
func newPublisher(t *testing.T) (*publish.Publisher, *gitserver.Server) {
	t.Helper()
	server := gitserver.New(t)
	server.Create(t, "public/site.git")
	server.ServeAPI(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/api/v1/version":
			_, _ = io.WriteString(w, `{"version":"1.26.0"}`)
		case r.Method == http.MethodPost:
			fmt.Fprintf(w, `{"html_url":"%s/public/site/pulls/1"}`, server.URL)
		default:
			_, _ = io.WriteString(w, `{"default_branch":"main"}`)
		}
	}))
	remote := server.URL + "/public/site.git"
	host, err := githost.New(&session.Repository{Name: remote, Host: server.Host(), Provider: v1alpha1.GitHub},
		gitserver.Token)
	if err != nil {
		t.Fatal(err)
	}
	gitserver.Run(t, server.Root, "git", "config", "--file", "public/site.git/config", "http.receivepack", "true")
	dir := filepath.Join(t.TempDir(), "site")
	gitserver.Run(t, t.TempDir(), "git", "clone", "-q", remote, dir)
	return &publish.Publisher{Host: host, Dir: dir, Remote: remote, NewBranch: "parley/talk",
		Env:     append(os.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1"),
		Confine: func(*exec.Cmd) {}, Mask: func(text string) string { return strings.ReplaceAll(text, "secret", "***") },
		Created: func(string) {}}, server
}

func change(t *testing.T, p *publish.Publisher, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.Dir, "changed"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestARequestThatIsTooLargeIsRefused(t *testing.T) {
	answer := httptest.NewRecorder()
	body := strings.NewReader(`{"title": "` + strings.Repeat("x", 128<<10) + `"}`)
	(&publish.Server{}).Push(answer, httptest.NewRequest(http.MethodPost, "/", body))
	if answer.Code != http.StatusRequestEntityTooLarge || !strings.Contains(answer.Body.String(), "larger than 128 KiB") {
		t.Errorf("answered %d %s", answer.Code, answer.Body)
	}
}

func TestChangesOnTheBaseBranchGoToANewBranch(t *testing.T) {
	p, server := newPublisher(t)
	for n, want := range []string{"parley/talk", "parley/talk-2"} {
		gitserver.Run(t, p.Dir, "git", "checkout", "-q", "main")
		change(t, p, fmt.Sprint(n))
		branch, err := p.CommitAndPush(t.Context(), session.PublishRequest{Title: "Change"})
		if err != nil || branch != want {
			t.Fatalf("got %q, %v", branch, err)
		}
	}
	bare := filepath.Join(server.Root, "public/site.git")
	if log := gitserver.Run(t, bare, "git", "log", "--format=%an %s", "main..parley/talk-2"); log != "Parley Change" {
		t.Errorf("the pushed commits are %q", log)
	}
}

func TestABranchThatTheAgentCreatedIsPushedUnderItsOwnName(t *testing.T) {
	p, _ := newPublisher(t)
	gitserver.Run(t, p.Dir, "git", "checkout", "-q", "-b", "fix")
	change(t, p, "fixed")
	link, err := p.CommitAndCreate(t.Context(), session.PublishRequest{Title: "Fix"})
	if err != nil || !strings.HasSuffix(link, "/pulls/1") {
		t.Fatalf("got %q, %v", link, err)
	}
	if branch := gitserver.Run(t, p.Dir, "git", "branch", "--show-current"); branch != "fix" {
		t.Errorf("the branch is %s", branch)
	}
}

func TestTheReasonIsShownIfAPullRequestCannotBeOpened(t *testing.T) {
	const hook = `git checkout -q -b fix; mkdir -p .git/hooks; cd .git/hooks
		printf '#!/bin/sh\necho a secret; exit 1' > pre-push; chmod +x pre-push`
	for name, c := range map[string]struct{ script, title, says string }{
		"the base branch": {"true", "Fix", "main is the base branch"},
		"no branch":       {"git checkout -q --detach", "Fix", "no branch is checked out"},
		"no title":        {"git checkout -q -b fix", " ", "title: must not be empty"},
		"a hook":          {hook, "Fix", "a ***"},
		"an older history": {"git checkout -q feature; git reset -q --hard HEAD~1; git commit -q --allow-empty -m x", "Fix",
			"git push failed"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newPublisher(t)
			cmd := exec.Command("sh", "-ec", c.script)
			cmd.Dir, cmd.Env = p.Dir, append(p.Env, "GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com",
				"GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			_, err := p.CreatePullRequest(t.Context(), session.PublishRequest{Title: c.title})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAFailedToolTellsTheModelTheReason(t *testing.T) {
	p, _ := newPublisher(t)
	for _, tool := range p.Tools() {
		result, err := tool.Run(t.Context(), &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: tool.Tool.Name}})
		if err != nil || !result.IsError || len(result.Content) != 1 {
			t.Fatalf("%s: %+v, %v", tool.Tool.Name, result, err)
		}
		if text, ok := result.Content[0].(*mcp.TextContent); !ok || text.Text == "" {
			t.Errorf("%s fails without a reason", tool.Tool.Name)
		}
	}
}

func TestASessionWithoutAGitTokenHasNoGitTools(t *testing.T) {
	if tools := (&publish.Publisher{}).Tools(); len(tools) > 0 {
		t.Errorf("got %d tools", len(tools))
	}
}
