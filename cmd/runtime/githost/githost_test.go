package githost_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
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
	for name, c := range map[string]struct {
		provider             v1alpha1.GitProvider
		token, authorization string
		// searches is set if the search has its own address.
		searches bool
		answers  map[string]string
	}{
		"GitHub": {v1alpha1.GitHub, "tok", "Bearer tok", true, map[string]string{
			"/api/v3/user": `{"id": 7, "login": "ada", "avatar_url": "a", "name": "Ada"}`,
			"/api/v3/user/repos": `[{"id": 1, "full_name": "o/r", "private": true, "stargazers_count": 3, ` +
				`"pushed_at": "2026", "default_branch": "main"}]`,
			"/api/v3/search/repositories": `{"items": [{"id": 2, "full_name": "o/found", "private": false}]}`,
			"/api/v3/repos/o/r/branches":  `[{"name": "main", "protected": true, "commit": {"sha": "c1"}}]`,
		}},
		"Gitea": {v1alpha1.GitHub, "tok", "Bearer tok", true, map[string]string{
			"/api/v1/version": `{"version": "1.24.6"}`,
			"/api/v1/user":    `{"id": 7, "login": "ada", "avatar_url": "a", "full_name": "Ada"}`,
			"/api/v1/user/repos": `[{"id": 1, "full_name": "o/r", "private": true, "stars_count": 3, ` +
				`"updated_at": "2026", "default_branch": "main"}]`,
			"/api/v1/repos/search":       `{"ok": true, "data": [{"id": 2, "full_name": "o/found", "private": false}]}`,
			"/api/v1/repos/o/r/branches": `[{"name": "main", "protected": true, "commit": {"id": "c1", "timestamp": "2026"}}]`,
		}},
		"GitLab": {v1alpha1.GitLab, "tok", "Bearer tok", false, map[string]string{
			"/api/v4/user": `{"id": 7, "username": "ada", "avatar_url": "a", "name": "Ada"}`,
			"/api/v4/projects": `[{"id": 1, "path_with_namespace": "o/r", "visibility": "private", "star_count": 3, ` +
				`"last_activity_at": "2026", "default_branch": "main"}]`,
			"/api/v4/projects/o%2Fr/repository/branches": `[{"name": "main", "protected": true, "commit": {"id": "c1"}}]`,
		}},
		"Bitbucket": {v1alpha1.Bitbucket, "me:pass", "Basic bWU6cGFzcw==", false, map[string]string{
			"/2.0/user": `{"uuid": "7", "username": "ada", "display_name": "Ada", "avatar_url": "a"}`,
			"/2.0/repositories": `{"values": [{"uuid": "1", "full_name": "o/r", "is_private": true, ` +
				`"updated_on": "2026", "mainbranch": {"name": "main"}}]}`,
			"/2.0/repositories/o/r/refs/branches": `{"values": [{"name": "main", "target": {"hash": "c1"}}]}`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			address := host(t, c.authorization, c.answers)
			repository := &session.Repository{Name: "http://" + address + "/o/r.git", Provider: c.provider, Host: address}
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
			if found, err := h.Repositories(t.Context(), "found", 1, 30); c.searches && (err != nil || len(found) != 1 ||
				found[0].FullName != "o/found" || !found[0].IsPublic) {
				t.Errorf("the found repositories are %+v, %v", found, err)
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

func TestALimitedRateIsNotReportedAsAWrongToken(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header http.Header
		want   error
	}{
		"too many requests":     {http.StatusTooManyRequests, nil, githost.ErrRate},
		"no requests are left":  {http.StatusForbidden, http.Header{"X-Ratelimit-Remaining": {"0"}}, githost.ErrRate},
		"a secondary limit":     {http.StatusForbidden, http.Header{"Retry-After": {"60"}}, githost.ErrRate},
		"a missing permission":  {http.StatusForbidden, http.Header{"X-Ratelimit-Remaining": {"7"}}, githost.ErrToken},
		"a token that is wrong": {http.StatusUnauthorized, nil, githost.ErrToken},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/version") {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			maps.Copy(w.Header(), c.header)
			w.WriteHeader(c.status)
		}))
		t.Cleanup(server.Close)
		h := open(t, strings.TrimPrefix(server.URL, "http://"), v1alpha1.GitHub, "tok")
		if _, err := h.User(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: the error of a list is %v", name, err)
		}
		if _, err := h.Read(t.Context(), "/issues"); !errors.Is(err, c.want) {
			t.Errorf("%s: the error of a read is %v", name, err)
		}
	}
}

func TestAHostWithoutGiteasVersionIsAGitHubServer(t *testing.T) {
	for name, version := range map[string]http.HandlerFunc{
		"not found":            http.NotFound,
		"a login page":         http.RedirectHandler("/login", http.StatusFound).ServeHTTP,
		"a page":               func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<!DOCTYPE html>") },
		"JSON, but no version": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") },
	} {
		mux := http.NewServeMux()
		mux.Handle("/api/v1/version", version)
		mux.HandleFunc("/api/v3/user", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"login":"ada"}`) })
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		h := open(t, strings.TrimPrefix(server.URL, "http://"), v1alpha1.GitHub, "tok")
		if user, err := h.User(t.Context()); err != nil || user.Login != "ada" {
			t.Errorf("%s: the user is %+v, %v", name, user, err)
		}
	}
}

// Gitea limits a page to 50 branches by default.
func TestTheFirstHundredBranchesOfAGiteaHostAreListed(t *testing.T) {
	for _, count := range []int{0, 49, 50, 51, 120} {
		mux := http.NewServeMux()
		mux.HandleFunc("/api/v1/version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"version":"1"}`) })
		mux.HandleFunc("/api/v1/repos/o/r/branches", func(w http.ResponseWriter, r *http.Request) {
			page, _ := strconv.Atoi(r.FormValue("page"))
			branches := []map[string]string{}
			for i := (page - 1) * 50; i < min(page*50, count); i++ {
				branches = append(branches, map[string]string{"name": fmt.Sprint(i)})
			}
			_ = json.NewEncoder(w).Encode(branches)
		})
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		found, err := open(t, strings.TrimPrefix(server.URL, "http://"), v1alpha1.GitHub, "tok").Branches(t.Context(), "o/r")
		if err != nil || len(found) != min(count, 100) {
			t.Errorf("%d of %d branches are listed, %v", len(found), count, err)
		}
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
