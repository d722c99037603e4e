package integration_test

import (
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/test/testenv"
)

// gitHost serves a repository over HTTP. It also serves GitHub's API, but only to requests with the
// token.
func gitHost(t *testing.T, token string) string {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	root := strings.TrimPrefix(repository(t), "file://")
	repositories := &cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + root,
		"GIT_HTTP_EXPORT_ALL=1", "HOME=" + t.TempDir(), "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory",
		"GIT_CONFIG_VALUE_0=*"}, Root: "/o/r.git"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]string{
			"/api/v3/user":               `{"id": 7, "login": "octo", "avatar_url": "", "name": "Octo"}`,
			"/api/v3/user/repos":         `[{"id": 1, "full_name": "o/r", "private": true}]`,
			"/api/v3/repos/o/r/branches": `[{"name": "main", "commit": {"sha": "c"}}]`,
		}
		if strings.HasPrefix(r.URL.Path, "/o/r.git") {
			repositories.ServeHTTP(w, r)
			return
		}
		if answer, found := answers[r.URL.Path]; found && r.Header.Get("Authorization") == "Bearer "+token {
			_, _ = w.Write([]byte(answer))
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestARunningSessionQueriesTheGitHost(t *testing.T) {
	t.Parallel()
	const token = "token-of-the-git-host"
	host := gitHost(t, token)
	ada := newPerson(t, map[string]any{"secrets_store": map[string]any{"provider_tokens": map[string]any{
		"github": map[string]any{"token": token, "host": host}}}})
	testenv.Await(t, func() error { // the facade reads the settings from its cache
		if code, answer := ada.do(t, "GET", "/api/user/repositories", ""); code != http.StatusServiceUnavailable {
			return fmt.Errorf("answered %d %s", code, answer)
		}
		return nil
	})
	ada.converse(t, "talk", map[string]any{"repository": "http://" + host + "/o/r.git", "git_provider": "github"})
	for path, want := range map[string]string{
		"repositories": `[{"id":"1","full_name":"o/r","git_provider":"github","is_public":false,` +
			`"stargazers_count":null,"pushed_at":null,"main_branch":null}]`,
		"repository/branches?repository=o/r": `[{"name":"main","commit_sha":"c","protected":false,"last_push_date":null}]`,
		"info": `{"id":"7","login":"octo","avatar_url":"","company":null,"name":"Octo",` +
			`"email":null}`,
		"suggested-tasks": `[]`,
	} {
		if got := ada.wants(t, 200, "GET", "/api/user/"+path, ""); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
