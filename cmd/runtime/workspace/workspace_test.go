package workspace_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
	"github.com/parley-dev/parley/hack/test/gitserver"
)

func options(t *testing.T, repository *session.Repository) workspace.Options {
	t.Helper()
	return workspace.Options{
		Dir: t.TempDir(), Home: t.TempDir(), Repository: repository,
		UserName: "Ada Lovelace", UserEmail: "ada@example.com",
		Log: slog.New(slog.DiscardHandler), RetryDelay: time.Microsecond, Patience: time.Hour,
	}
}

func private(s *gitserver.Server, branch string) *session.Repository {
	return &session.Repository{Name: s.URL + "/private/site.git", Provider: v1alpha1.GitHub, Host: s.Host(),
		Branch: branch}
}

func prepare(t *testing.T, o workspace.Options) *workspace.Workspace {
	t.Helper()
	prepared, err := workspace.Prepare(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return prepared
}

func TestARepositoryIsClonedAtTheRequestedBranch(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	o := options(t, private(server, "feature"))
	o.Token = gitserver.Token
	got := prepare(t, o)
	if want := filepath.Join(o.Dir, "site"); got.Dir != want || got.Branch != "feature" || got.Resumed {
		t.Errorf("got %+v, want a new clone in %s at feature", got, want)
	}
	if head := gitserver.Run(t, got.Dir, "git", "rev-parse", "HEAD"); head != got.Commit {
		t.Errorf("the commit is %s, git says %s", got.Commit, head)
	}
	if branch := gitserver.Run(t, got.Dir, "git", "branch", "--show-current"); branch != "feature" {
		t.Errorf("git is at branch %q", branch)
	}
	if status := gitserver.Run(t, got.Dir, "git", "status", "--porcelain"); status != "" {
		t.Errorf("the clone is not clean:\n%s", status)
	}
	if commits := gitserver.Run(t, got.Dir, "git", "rev-list", "--count", "HEAD"); commits != "1" {
		t.Errorf("the clone has %s commits, want it shallow", commits)
	}
	if author := gitserver.RunIn(t, got.Dir, o.Home, "git", "var", "GIT_AUTHOR_IDENT"); !strings.HasPrefix(author,
		"Ada Lovelace <ada@example.com>") {
		t.Errorf("the author is %s", author)
	}
}

func TestTheDefaultBranchIsCheckedOutIfNoBranchIsRequested(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "public/site.git")
	got := prepare(t, options(t, &session.Repository{Name: server.URL + "/public/site"}))
	if got.Branch != "main" {
		t.Errorf("the branch is %q", got.Branch)
	}
	gitserver.Run(t, got.Dir, "git", "fetch", "-q", "origin")
	if branches := gitserver.Run(t, got.Dir, "git", "branch", "-r", "--list", "origin/feature"); branches == "" {
		t.Error("a fetch does not bring the other branches")
	}
}

func TestALocalRepositoryIsCloned(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "local.git")
	worktree := filepath.Join(t.TempDir(), "work")
	gitserver.Run(t, server.Root, "git", "clone", "-q", "-b", "feature", filepath.Join(server.Root, "local.git"), worktree)
	for _, location := range []string{filepath.Join(server.Root, "local.git"), worktree} {
		// The empty PATH shows that the git program is not needed.
		t.Setenv("PATH", t.TempDir())
		if got := prepare(t, options(t, &session.Repository{Name: "file://" + location,
			Branch: "feature"})); got.Branch != "feature" {
			t.Errorf("%s: the branch is %q", location, got.Branch)
		}
	}
}

func TestTheCloneOfAnEmptyRepositoryAcceptsCommits(t *testing.T) {
	server := gitserver.New(t)
	server.CreateEmpty(t, "public/new.git")
	o := options(t, &session.Repository{Name: server.URL + "/public/new.git"})
	got := prepare(t, o)
	gitserver.Commit(t, got.Dir, "a", "first")
	if remote := gitserver.Run(t, got.Dir, "git", "remote", "get-url", "origin"); remote != server.URL+"/public/new.git" {
		t.Errorf("the remote is %s", remote)
	}
	o.Repository.Branch = "main"
	o.Dir = t.TempDir()
	if _, err := workspace.Prepare(t.Context(), o); err == nil || !strings.Contains(err.Error(), `no branch "main"`) {
		t.Errorf("a branch of an empty repository: %v", err)
	}
}

func TestAWorkspaceWithoutARepositoryIsEmpty(t *testing.T) {
	o := options(t, nil)
	if got := prepare(t, o); got.Dir != o.Dir || got.Resumed {
		t.Errorf("got %+v", got)
	}
	if author := gitserver.RunIn(t, o.Dir, o.Home, "git", "var", "GIT_AUTHOR_IDENT"); !strings.HasPrefix(author,
		"Ada Lovelace <ada@example.com>") {
		t.Errorf("the author is %s", author)
	}
}

func TestCloneErrorsNameTheCause(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	server.Create(t, "forbidden/site.git")
	closed := gitserver.New(t)
	closed.Close()
	at := func(path string) *session.Repository {
		return &session.Repository{Name: server.URL + path, Provider: v1alpha1.GitHub, Host: server.Host()}
	}
	for name, c := range map[string]struct {
		repository *session.Repository
		token      string
		says       string
	}{
		"no repository": {at("/private/nothing.git"), gitserver.Token,
			"has no such repository, or the token has no access to it"},
		"no public access":   {at("/public/nothing.git"), "", "has no such repository, or it is private"},
		"no branch":          {private(server, "nothing"), gitserver.Token, `it has no branch "nothing"`},
		"no token":           {private(server, ""), "", "requires a token, but none is set"},
		"wrong token":        {private(server, ""), "ghp_wrong", "does not accept the token"},
		"no permission":      {at("/forbidden/site.git"), gitserver.Token, "denies read access to the repository"},
		"unreachable host":   {&session.Repository{Name: closed.URL + "/a/b"}, "", "cannot be reached"},
		"unknown host name":  {&session.Repository{Name: "http://host.invalid/a/b"}, "", "host.invalid cannot be reached"},
		"no local directory": {&session.Repository{Name: "file:///nowhere"}, "", "there is no git repository at /nowhere"},
		"server error":       {at("/busy/site.git"), gitserver.Token, server.Host() + " answers with status 503"},
		"no provider host":   {&session.Repository{Name: "a/b", Provider: v1alpha1.EnterpriseSSO}, "", "must name a host"},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, c.repository)
			o.Token = c.token
			_, err := givenUp(t, o)
			if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.repository.Name) {
				t.Fatalf("got %v, want an error that says %q", err, c.says)
			}
			if strings.Contains(err.Error(), gitserver.Token) {
				t.Errorf("the token is in the error: %v", err)
			}
			if entries, err := os.ReadDir(o.Dir); err != nil || len(entries) > 0 {
				t.Errorf("left in the workspace: %v %v", entries, err)
			}
		})
	}
}

func TestTransientFailuresAreRetried(t *testing.T) {
	answer := func(status int) gitserver.Failure {
		return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { http.Error(w, "not now", status) }
	}
	cut := func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
	cutLate := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		whole := httptest.NewRecorder()
		next.ServeHTTP(whole, r)
		maps.Copy(w.Header(), whole.Header())
		_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()-40])
		panic(http.ErrAbortHandler)
	}
	for name, c := range map[string]struct {
		method string
		fail   gitserver.Failure
	}{
		"unavailable at the first request":          {http.MethodGet, answer(http.StatusServiceUnavailable)},
		"unavailable at the second request":         {http.MethodPost, answer(http.StatusServiceUnavailable)},
		"a gateway error":                           {http.MethodPost, answer(http.StatusBadGateway)},
		"a rate limit":                              {http.MethodGet, answer(http.StatusTooManyRequests)},
		"a broken connection at the first request":  {http.MethodGet, cut},
		"a broken connection at the second request": {http.MethodPost, cut},
		"a truncated list of refs":                  {http.MethodGet, cutLate},
		"a truncated pack file":                     {http.MethodPost, cutLate},
	} {
		t.Run(name, func(t *testing.T) {
			server := gitserver.New(t)
			server.Create(t, "private/site.git")
			server.FailOnce(c.method, c.fail)
			o := options(t, private(server, "feature"))
			o.Token = gitserver.Token
			if got := prepare(t, o); got.Branch != "feature" {
				t.Errorf("got %+v", got)
			}
			gitserver.Run(t, filepath.Join(o.Dir, "site"), "git", "fsck")
		})
	}
}

func TestAResumedWorkspaceIsNotClonedAgain(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	o := options(t, private(server, "feature"))
	o.Token = gitserver.Token
	first := prepare(t, o)
	if err := os.WriteFile(filepath.Join(first.Dir, "feature"), []byte("changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	server.Close()
	o.UserName = "Grace Hopper"
	second := prepare(t, o)
	if !second.Resumed || second.Dir != first.Dir || second.Branch != "feature" {
		t.Errorf("got %+v", second)
	}
	if text, err := os.ReadFile(filepath.Join(second.Dir, "feature")); err != nil || string(text) != "changed\n" {
		t.Errorf("the work is lost: %q %v", text, err)
	}
	if name := gitserver.RunIn(t, second.Dir, o.Home, "git", "config", "user.name"); name != "Grace Hopper" {
		t.Errorf("the author is still %s", name)
	}
}

func TestAResumedWorkspaceKeepsItsGitConfiguration(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "public/site.git")
	o := options(t, &session.Repository{Name: server.URL + "/public/site.git"})
	first := prepare(t, o)
	for _, setting := range [][]string{
		{"core.repositoryformatversion", "1"}, {"remote.origin.pushurl", "https://example.com/mine.git"},
		{"user.name", "Alan Turing"},
	} {
		gitserver.Run(t, first.Dir, "git", "config", setting[0], setting[1])
	}
	file := filepath.Join(first.Dir, ".git", "config")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before = append(before, "# mine\n"...)
	if err := os.WriteFile(file, before, 0o644); err != nil {
		t.Fatal(err)
	}
	if second := prepare(t, o); !second.Resumed {
		t.Errorf("got %+v", second)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("it was\n%s\nand is, %v,\n%s", before, err, after)
	}
	gitserver.Run(t, first.Dir, "git", "status")
}

// The library go-git cannot read a clone with a sparse checkout.
func TestAnExistingCloneWithASparseCheckoutIsUsedAgain(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	o := options(t, private(server, "feature"))
	o.Token = gitserver.Token
	first := prepare(t, o)
	gitserver.Run(t, first.Dir, "git", "sparse-checkout", "set", "--no-cone", "/*")
	if second := prepare(t, o); !second.Resumed || second.Dir != first.Dir {
		t.Errorf("got %+v", second)
	}
}

func TestAnInterruptedCloneIsRepeated(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	o := options(t, private(server, "feature"))
	o.Token = gitserver.Token
	killed := exec.Command(os.Args[0])
	killed.Env = append(os.Environ(), "CLONE="+o.Repository.Name, "HOST="+o.Repository.Host, "DIR="+o.Dir, "HOME="+o.Home)
	middle, dead := make(chan struct{}), make(chan struct{})
	server.SetDuring(func() {
		close(middle)
		<-dead
	})
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	<-middle
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	server.SetDuring(nil)
	close(dead)
	if left, err := filepath.Glob(filepath.Join(o.Dir, ".parley-clone-*")); err != nil || len(left) != 1 {
		t.Fatalf("the killed clone left %v, %v", left, err)
	}
	if got := prepare(t, o); got.Resumed || got.Branch != "feature" {
		t.Errorf("got %+v", got)
	}
	if entries, err := os.ReadDir(o.Dir); err != nil || len(entries) != 1 {
		t.Errorf("in the workspace: %v %v", entries, err)
	}
}

// The test binary is also a program that clones a repository. A test kills this program.
func TestMain(m *testing.M) {
	if name := os.Getenv("CLONE"); name != "" {
		_, err := workspace.Prepare(context.Background(), workspace.Options{
			Dir: os.Getenv("DIR"), Home: os.Getenv("HOME"), Token: gitserver.Token, Log: slog.New(slog.DiscardHandler),
			Patience:   time.Hour,
			Repository: &session.Repository{Name: name, Provider: v1alpha1.GitHub, Host: os.Getenv("HOST"), Branch: "feature"},
		})
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestADirectoryThatIsNotACloneIsNotReplaced(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "public/site.git")
	o := options(t, &session.Repository{Name: server.URL + "/public/site.git"})
	mine := filepath.Join(o.Dir, "site", "mine")
	if err := os.MkdirAll(mine, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := workspace.Prepare(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is not a clone") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

func TestTheCloneURLFollowsFromTheProviderAndTheRepository(t *testing.T) {
	for _, c := range []struct {
		repository      session.Repository
		url, name, user string
	}{
		{session.Repository{Name: "acme/site"}, "https://github.com/acme/site.git", "site", "x-access-token"},
		{session.Repository{Name: "acme/site.git", Provider: v1alpha1.GitHub}, "https://github.com/acme/site.git", "site",
			"x-access-token"},
		{session.Repository{Name: "a/b/c", Provider: v1alpha1.GitLab}, "https://gitlab.com/a/b/c.git", "c", "oauth2"},
		{session.Repository{Name: "a/b", Provider: v1alpha1.Bitbucket, UserID: "ada"}, "https://bitbucket.org/a/b.git", "b",
			"ada"},
		{session.Repository{Name: "a/b", Provider: v1alpha1.EnterpriseSSO, Host: "git.example.com:8443"},
			"https://git.example.com:8443/a/b.git", "b", "x-access-token"},
		{session.Repository{Name: "https://GitHub.com/a/b", Provider: v1alpha1.GitHub}, "https://GitHub.com/a/b", "b",
			"x-access-token"},
		{session.Repository{Name: "https://evil.example/a/b", Provider: v1alpha1.GitHub}, "https://evil.example/a/b", "b",
			""},
		{session.Repository{Name: "http://github.com/a/b", Provider: v1alpha1.GitHub}, "http://github.com/a/b", "b", ""},
		{session.Repository{Name: "http://github.com/a/b", Provider: v1alpha1.GitHub, Host: "github.com"},
			"http://github.com/a/b", "b", ""},
		{session.Repository{Name: "http://GitHub.com:80/a/b", Provider: v1alpha1.GitHub, Host: "github.com:80"},
			"http://GitHub.com:80/a/b", "b", ""},
		{session.Repository{Name: "http://github.com./a/b", Provider: v1alpha1.GitHub, Host: "github.com."},
			"http://github.com./a/b", "b", ""},
		{session.Repository{Name: "http://www.gitlab.com/a/b", Provider: v1alpha1.GitLab, Host: "www.gitlab.com"},
			"http://www.gitlab.com/a/b", "b", ""},
		{session.Repository{Name: "http://bitbucket.org/a/b", Provider: v1alpha1.EnterpriseSSO, Host: "bitbucket.org"},
			"http://bitbucket.org/a/b", "b", ""},
		{session.Repository{Name: "https://github.com/a/b", Provider: v1alpha1.GitHub, Host: "github.com"},
			"https://github.com/a/b", "b", "x-access-token"},
		{session.Repository{Name: "http://notgithub.com/a/b", Provider: v1alpha1.GitHub, Host: "notgithub.com"},
			"http://notgithub.com/a/b", "b", "x-access-token"},
		{session.Repository{Name: "file:///srv/.git", Provider: v1alpha1.GitHub}, "file:///srv/.git", "repository", ""},
		{session.Repository{Name: "https://example.com/..", Provider: v1alpha1.GitHub}, "https://example.com/..",
			"repository", ""},
	} {
		got, err := workspace.Locate(&c.repository)
		if err != nil || got.URL.String() != c.url || got.Name != c.name || got.User != c.user {
			t.Errorf("%+v: got %+v, %v", c.repository, got, err)
		}
	}
	for _, name := range []string{"https://ada:secret@example.com/a", "ssh://git@example.com/a", "http://%zz"} {
		if _, err := workspace.Prepare(t.Context(), options(t, &session.Repository{Name: name})); err == nil ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
