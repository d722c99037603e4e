package githost_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/githost"
)

// host starts a fake git host. It answers only requests with the given Authorization header.
func host(t *testing.T, authorization string, answers map[string]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, found := answers[r.URL.EscapedPath()]
		switch {
		case r.Header.Get("Authorization") != authorization:
			w.WriteHeader(http.StatusUnauthorized)
		case !found:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = w.Write([]byte(answer))
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestRequestsUseTheAPIOfTheProvider(t *testing.T) {
	for provider, c := range map[v1alpha1.GitProvider]struct {
		token, authorization string
		answers              map[string]string
	}{
		v1alpha1.GitHub: {"tok", "Bearer tok", map[string]string{
			"/api/v3/user": `{"id": 7, "login": "ada", "avatar_url": "a", "name": "Ada"}`,
			"/api/v3/user/repos": `[{"id": 1, "full_name": "o/r", "private": true, "stargazers_count": 3, ` +
				`"pushed_at": "2026", "default_branch": "main"}]`,
			"/api/v3/search/repositories": `{"items": [{"id": 2, "full_name": "o/found", "private": false}]}`,
			"/api/v3/repos/o/r/branches":  `[{"name": "main", "protected": true, "commit": {"sha": "c1"}}]`,
		}},
		v1alpha1.GitLab: {"tok", "Bearer tok", map[string]string{
			"/api/v4/user": `{"id": 7, "username": "ada", "avatar_url": "a", "name": "Ada"}`,
			"/api/v4/projects": `[{"id": 1, "path_with_namespace": "o/r", "visibility": "private", "star_count": 3, ` +
				`"last_activity_at": "2026", "default_branch": "main"}]`,
			"/api/v4/projects/o%2Fr/repository/branches": `[{"name": "main", "protected": true, "commit": {"id": "c1"}}]`,
		}},
		v1alpha1.Bitbucket: {"me:pass", "Basic bWU6cGFzcw==", map[string]string{
			"/2.0/user": `{"uuid": "7", "username": "ada", "display_name": "Ada", "avatar_url": "a"}`,
			"/2.0/repositories": `{"values": [{"uuid": "1", "full_name": "o/r", "is_private": true, ` +
				`"updated_on": "2026", "mainbranch": {"name": "main"}}]}`,
			"/2.0/repositories/o/r/refs/branches": `{"values": [{"name": "main", "target": {"hash": "c1"}}]}`,
		}},
	} {
		t.Run(string(provider), func(t *testing.T) {
			address := host(t, c.authorization, c.answers)
			repository := &session.Repository{Name: "http://" + address + "/o/r.git", Provider: provider, Host: address}
			h, err := githost.New(repository, c.token)
			if err != nil {
				t.Fatal(err)
			}
			if u, err := h.User(t.Context()); err != nil || u.ID != "7" || u.Login != "ada" || *u.Name != "Ada" {
				t.Errorf("the user is %+v, %v", u, err)
			}
			list, err := h.Repositories(t.Context(), "", 1, 30)
			if err != nil || len(list) != 1 || list[0].FullName != "o/r" || list[0].IsPublic || list[0].ID != "1" ||
				*list[0].MainBranch != "main" || *list[0].PushedAt != "2026" {
				t.Errorf("the repositories are %+v, %v", list, err)
			}
			branches, err := h.Branches(t.Context(), "o/r")
			if got := fmt.Sprintf("%+v", branches); err != nil || len(branches) != 1 || branches[0].Name != "main" ||
				branches[0].CommitSHA != "c1" {
				t.Errorf("the branches are %s, %v", got, err)
			}
			if _, err := h.Branches(t.Context(), "../user"); !errors.Is(err, githost.ErrQuestion) {
				t.Errorf("for an invalid repository: %v", err)
			}
			wrong, err := githost.New(repository, "wrong")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := wrong.User(t.Context()); !errors.Is(err, githost.ErrToken) || strings.Contains(err.Error(), "wrong") {
				t.Errorf("with a wrong token: %v", err)
			}
		})
	}
}

func TestATokenIsSentOnlyToItsHost(t *testing.T) {
	for name, repository := range map[string]*session.Repository{
		"no repository":             nil,
		"another host":              {Name: "https://elsewhere.example.com/o/r", Provider: v1alpha1.GitHub},
		"a public host without TLS": {Name: "http://github.com/o/r", Provider: v1alpha1.GitHub},
	} {
		if _, err := githost.New(repository, "tok"); !errors.Is(err, githost.ErrNoToken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	address := host(t, "Bearer tok", map[string]string{"/api/v3/user/repos": "[]", "/api/v3/repos/o/r/branches": "[]"})
	h, err := githost.New(&session.Repository{Name: "http://" + address + "/o/r.git", Provider: v1alpha1.GitHub,
		Host: address}, "tok")
	if err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"?page=2&per_page=100": "200", "?page=x": "422 page:", "?page=0": "422 page:", "?page=99999999999": "422 page:",
		"?per_page=-1": "422 per_page:", "?per_page=101": "422 per_page:",
		"?repository=o/r": "200", "?repository=": "422 repository:", "?repository=r": "422 repository:",
		"?repository=o/../r": "422 repository:",
	} {
		ask := githost.AskRepositories
		if strings.HasPrefix(query, "?repository") {
			ask = githost.AskBranches
		}
		answer := httptest.NewRecorder()
		githost.Serve(h, ask)(answer, httptest.NewRequest("GET", "/"+query, nil))
		code, name, _ := strings.Cut(want, " ")
		if fmt.Sprint(answer.Code) != code || !strings.Contains(answer.Body.String(), name) {
			t.Errorf("%s: got %d %s", query, answer.Code, answer.Body)
		}
	}
}
