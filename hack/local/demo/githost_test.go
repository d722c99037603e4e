package main

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheGitHostOpensPullRequestsForPushedBranches(t *testing.T) {
	dir := t.TempDir()
	root, err := makeRepository(t.Context(), filepath.Join(dir, "demo"))
	if err != nil {
		t.Fatal(err)
	}
	host, err := serveGitHost(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	open := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+host.address+"/api/v1/repos/"+repositoryName+"/pulls",
			strings.NewReader(`{"title":"Greet","head":"demo","base":"main"}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	if code := open("wrong"); code != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d", code)
	}
	if code := open(host.token); code != http.StatusUnprocessableEntity {
		t.Errorf("a branch that does not exist: %d", code)
	}
	push := exec.CommandContext(t.Context(), "sh", "-ec", `git clone -q "$0" clone && cd clone && git switch -q -c demo &&
		echo more > more && git add . && git -c user.name=T -c user.email=t@example.com commit -q -m more &&
		git push -q origin demo`, strings.Replace(host.url(), "://", "://any:"+host.token+"@", 1)+".git")
	push.Dir, push.Env = dir, append(push.Environ(), "GIT_TERMINAL_PROMPT=0")
	if output, err := push.CombinedOutput(); err != nil {
		t.Fatalf("push: %v\n%s", err, output)
	}
	if code := open(host.token); code != http.StatusCreated {
		t.Errorf("a pushed branch: %d", code)
	}
	if pull, link, exists := host.last(); !exists || pull.Head != "demo" || link != host.url()+"/pulls/1" {
		t.Errorf("the pull request is %+v, %s", pull, link)
	}
}
