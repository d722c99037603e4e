package githost_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/githost"
)

// exchange is a request that a host expects, and the host's response.
type exchange struct {
	method, target string
	body           string // as JSON; empty for none
	status         int
	answer         string
}

// scripted starts a host that expects these exchanges in this order. Each request must have the
// Authorization header.
func scripted(t *testing.T, authorization string, exchanges ...exchange) (address string) {
	t.Helper()
	next := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if next == len(exchanges) {
			t.Errorf("an unexpected request: %s %s", r.Method, r.URL)
			return
		}
		e := exchanges[next]
		next++
		if got := r.Header.Get("Authorization"); got != authorization {
			t.Errorf("the authorization is %q", got)
		}
		if got := r.Method + " " + r.URL.RequestURI(); strings.TrimSuffix(got, "?") != e.method+" "+e.target {
			t.Errorf("got %s, want %s %s", got, e.method, e.target)
		}
		text, _ := io.ReadAll(r.Body)
		if got, want := normal(string(text)), normal(e.body); got != want {
			t.Errorf("the body of %s is %s, want %s", e.target, got, want)
		}
		w.WriteHeader(e.status)
		_, _ = io.WriteString(w, e.answer)
	}))
	t.Cleanup(func() {
		server.Close()
		if next < len(exchanges) {
			t.Errorf("only %d of %d requests arrived", next, len(exchanges))
		}
	})
	return strings.TrimPrefix(server.URL, "http://")
}

func normal(text string) string {
	var value any
	if text == "" || json.Unmarshal([]byte(text), &value) != nil {
		return text
	}
	return fmt.Sprint(value)
}

func open(t *testing.T, address string, provider v1alpha1.GitProvider, token string) *githost.Host {
	t.Helper()
	h, err := githost.New(&session.Repository{Name: "http://" + address + "/acme/site.git", Provider: provider,
		Host: address}, token)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// kinds contains requests and responses from the documentation of each kind of host.
var kinds = map[string]struct {
	provider             v1alpha1.GitProvider
	token, authorization string
	detect               []exchange // requests that detect the kind of the host
	repository           exchange
	create               exchange
	link                 string
	existing             []exchange // requests if the branch already has a pull request
	comment, onIssue     exchange
	commentLink          string
}{
	"GitHub": {provider: v1alpha1.GitHub, token: "tok", authorization: "Bearer tok",
		detect:     []exchange{{"GET", "/api/v1/version", "", 404, `{"message":"Not Found"}`}},
		repository: exchange{"GET", "/api/v3/repos/acme/site", "", 200, `{"default_branch":"main"}`},
		create: exchange{"POST", "/api/v3/repos/acme/site/pulls",
			`{"title":"Fix it","body":"Because","head":"fix/it","base":"main"}`, 201,
			`{"number":7,"html_url":"https://github.example.com/acme/site/pull/7"}`},
		link: "https://github.example.com/acme/site/pull/7",
		existing: []exchange{{"POST", "/api/v3/repos/acme/site/pulls",
			`{"title":"Fix it","body":"Because","head":"fix/it","base":"main"}`, 422,
			`{"message":"Validation Failed","errors":[{"message":"A pull request already exists for acme:fix/it."}]}`},
			{"GET", "/api/v3/repos/acme/site/pulls?base=main&head=acme%3Afix%2Fit&state=open", "", 200,
				`[{"html_url":"https://github.example.com/acme/site/pull/7"}]`}},
		comment: exchange{"POST", "/api/v3/repos/acme/site/issues/7/comments", `{"body":"Done"}`, 201,
			`{"html_url":"https://github.example.com/acme/site/pull/7#issuecomment-1"}`},
		onIssue: exchange{"POST", "/api/v3/repos/acme/site/issues/7/comments", `{"body":"Done"}`, 201,
			`{"html_url":"https://github.example.com/acme/site/pull/7#issuecomment-1"}`},
		commentLink: "https://github.example.com/acme/site/pull/7#issuecomment-1"},
	"GitLab": {provider: v1alpha1.GitLab, token: "tok", authorization: "Bearer tok",
		repository: exchange{"GET", "/api/v4/projects/acme%2Fsite", "", 200, `{"default_branch":"main"}`},
		create: exchange{"POST", "/api/v4/projects/acme%2Fsite/merge_requests",
			`{"title":"Fix it","description":"Because","source_branch":"fix/it","target_branch":"main"}`, 201,
			`{"iid":7,"web_url":"https://gitlab.example.com/acme/site/-/merge_requests/7"}`},
		link: "https://gitlab.example.com/acme/site/-/merge_requests/7",
		existing: []exchange{{"POST", "/api/v4/projects/acme%2Fsite/merge_requests",
			`{"title":"Fix it","description":"Because","source_branch":"fix/it","target_branch":"main"}`, 409,
			`{"message":["Another open merge request already exists for this source branch: !7"]}`},
			{"GET", "/api/v4/projects/acme%2Fsite/merge_requests?source_branch=fix%2Fit&state=opened&target_branch=main", "",
				200, `[{"web_url":"https://gitlab.example.com/acme/site/-/merge_requests/7"}]`}},
		comment: exchange{"POST", "/api/v4/projects/acme%2Fsite/merge_requests/7/notes", `{"body":"Done"}`, 201,
			`{"id":12}`},
		onIssue:     exchange{"POST", "/api/v4/projects/acme%2Fsite/issues/7/notes", `{"body":"Done"}`, 201, `{"id":12}`},
		commentLink: "#note_12"},
	"Bitbucket": {provider: v1alpha1.Bitbucket, token: "ada:pass", authorization: "Basic YWRhOnBhc3M=",
		repository: exchange{"GET", "/2.0/repositories/acme/site", "", 200, `{"mainbranch":{"name":"main"}}`},
		create: exchange{"POST", "/2.0/repositories/acme/site/pullrequests",
			`{"title":"Fix it","description":"Because","source":{"branch":{"name":"fix/it"}},
				"destination":{"branch":{"name":"main"}}}`, 201,
			`{"id":7,"links":{"html":{"href":"https://bitbucket.org/acme/site/pull-requests/7"}}}`},
		link: "https://bitbucket.org/acme/site/pull-requests/7",
		comment: exchange{"POST", "/2.0/repositories/acme/site/pullrequests/7/comments", `{"content":{"raw":"Done"}}`, 201,
			`{"links":{"html":{"href":"https://bitbucket.org/acme/site/pull-requests/7#comment-1"}}}`},
		onIssue: exchange{"POST", "/2.0/repositories/acme/site/issues/7/comments", `{"content":{"raw":"Done"}}`, 201,
			`{"links":{"html":{"href":"https://bitbucket.org/acme/site/pull-requests/7#comment-1"}}}`},
		commentLink: "https://bitbucket.org/acme/site/pull-requests/7#comment-1"},
	"Gitea": {provider: v1alpha1.EnterpriseSSO, token: "tok", authorization: "Bearer tok",
		detect:     []exchange{{"GET", "/api/v1/version", "", 200, `{"version":"1.26.0"}`}},
		repository: exchange{"GET", "/api/v1/repos/acme/site", "", 200, `{"default_branch":"main"}`},
		create: exchange{"POST", "/api/v1/repos/acme/site/pulls",
			`{"title":"Fix it","body":"Because","head":"fix/it","base":"main"}`, 201,
			`{"number":7,"html_url":"https://git.example.com/acme/site/pulls/7"}`},
		link: "https://git.example.com/acme/site/pulls/7",
		existing: []exchange{{"POST", "/api/v1/repos/acme/site/pulls",
			`{"title":"Fix it","body":"Because","head":"fix/it","base":"main"}`, 409,
			`{"message":"pull request already exists for these targets"}`},
			{"GET", "/api/v1/repos/acme/site/pulls/main/fix/it", "", 200,
				`{"state":"open","html_url":"https://git.example.com/acme/site/pulls/7"}`}},
		comment: exchange{"POST", "/api/v1/repos/acme/site/issues/7/comments", `{"body":"Done"}`, 201,
			`{"html_url":"https://git.example.com/acme/site/pulls/7#issuecomment-1"}`},
		onIssue: exchange{"POST", "/api/v1/repos/acme/site/issues/7/comments", `{"body":"Done"}`, 201,
			`{"html_url":"https://git.example.com/acme/site/pulls/7#issuecomment-1"}`},
		commentLink: "https://git.example.com/acme/site/pulls/7#issuecomment-1"},
}

var wanted = githost.PullRequest{Title: "Fix it", Body: "Because", Branch: "fix/it"}

func TestPullRequestsAreOpenedOnEachKindOfHost(t *testing.T) {
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			address := scripted(t, k.authorization, append(k.detect, k.repository, k.create)...)
			if link, err := open(t, address, k.provider, k.token).CreatePullRequest(t.Context(), wanted); err != nil ||
				link != k.link {
				t.Errorf("got %q, %v", link, err)
			}
		})
	}
}

func TestTheLinkOfAnExistingPullRequestIsReturned(t *testing.T) {
	for name, k := range kinds {
		if k.existing == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			address := scripted(t, k.authorization, append(k.detect, k.existing...)...)
			pr := wanted
			pr.Base = "main"
			if link, err := open(t, address, k.provider, k.token).CreatePullRequest(t.Context(), pr); err != nil ||
				link != k.link {
				t.Errorf("got %q, %v", link, err)
			}
		})
	}
}

func TestCommentsAreAddedOnEachKindOfHost(t *testing.T) {
	for name, k := range kinds {
		for _, onIssue := range []bool{false, true} {
			t.Run(fmt.Sprint(name, onIssue), func(t *testing.T) {
				e := k.comment
				if onIssue {
					e = k.onIssue
				}
				address := scripted(t, k.authorization, append(k.detect, e)...)
				link, err := open(t, address, k.provider, k.token).Comment(t.Context(), 7, onIssue, "Done")
				if err != nil || !strings.HasSuffix(link, k.commentLink) {
					t.Errorf("got %q, %v", link, err)
				}
			})
		}
	}
}

func TestTheReasonOfARefusedPullRequestIsShown(t *testing.T) {
	address := scripted(t, "Bearer tok", kinds["GitHub"].detect[0],
		exchange{"POST", "/api/v3/repos/acme/site/pulls", `{"title":"Fix it","body":"Because","head":"fix/it","base":"main"}`,
			422, `{"message":"Validation Failed","errors":[{"message":"No commits between main and fix/it"}]}`},
		exchange{"GET", "/api/v3/repos/acme/site/pulls?base=main&head=acme%3Afix%2Fit&state=open", "", 200, `[]`})
	pr := wanted
	pr.Base = "main"
	_, err := open(t, address, v1alpha1.GitHub, "tok").CreatePullRequest(t.Context(), pr)
	if !errors.Is(err, githost.ErrQuestion) || !strings.Contains(err.Error(), "No commits between main and fix/it") {
		t.Errorf("got %v", err)
	}
}

func TestSettingsAndSecretsOfARepositoryCannotBeRead(t *testing.T) {
	k := kinds["GitLab"]
	address := scripted(t, k.authorization, exchange{"GET",
		"/api/v4/projects/acme%2Fsite/issues/3/notes?per_page=5", "", 200, `[{"body":"It fails"}]`})
	h := open(t, address, k.provider, k.token)
	if text, err := h.Read(t.Context(), "/issues/3/notes?per_page=5"); err != nil || text != `[{"body":"It fails"}]` {
		t.Errorf("got %q, %v", text, err)
	}
	for _, path := range []string{"", "/", "/variables", "/hooks", "/pipelines/1/variables", "/issues/../variables",
		"/issues/%2e%2e/variables", "issues", "/issuesx", "/triggers", "/actions/secrets"} {
		if _, err := h.Read(t.Context(), path); !errors.Is(err, githost.ErrQuestion) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestTheTokenIsNotSentToTheHostThatServesLogs(t *testing.T) {
	k := kinds["GitLab"]
	redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.invalid/log", http.StatusFound)
	}))
	t.Cleanup(redirecting.Close)
	h := open(t, strings.TrimPrefix(redirecting.URL, "http://"), k.provider, k.token)
	if _, err := h.Read(t.Context(), "/jobs/1/trace"); !errors.Is(err, githost.ErrHost) {
		t.Errorf("a redirect without TLS: %v", err)
	}
	var got http.Header
	logs := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		_, _ = io.WriteString(w, "it failed")
	}))
	t.Cleanup(logs.Close)
	redirecting.Config.Handler = http.RedirectHandler(logs.URL, http.StatusFound)
	githost.Trust(h, logs)
	if text, err := h.Read(t.Context(), "/jobs/1/trace"); err != nil || text != "it failed" ||
		got.Get("Authorization") != "" {
		t.Errorf("got %q, %v with %v", text, err, got)
	}
}
