package workspace_test

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
	"github.com/parley-dev/parley/hack/test/gitserver"
)

func TestTheTokenIsNotStoredOnDisk(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	o := options(t, private(server, "feature"))
	o.Token = gitserver.Token
	prepare(t, o)
	for _, root := range []string{o.Dir, o.Home} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			if bytes.Contains(text, []byte(gitserver.Token)) || bytes.Contains(text,
				[]byte(base64.StdEncoding.EncodeToString([]byte(gitserver.User+":"+gitserver.Token)))) {
				t.Errorf("%s has the token", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestATokenIsSentOnlyToItsProvider(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "public/site.git")
	o := options(t, &session.Repository{Name: server.URL + "/public/site.git", Provider: v1alpha1.GitHub})
	o.Token, o.ProxyURL = gitserver.Token, "http://127.0.0.1:1234/git/example.com/"
	prepare(t, o)
	if n := server.Authenticated.Load(); n > 0 {
		t.Errorf("%d requests to another host had the token", n)
	}
	if _, err := os.Stat(filepath.Join(o.Home, ".gitconfig")); err == nil {
		if text := gitserver.Run(t, o.Home, "cat", ".gitconfig"); strings.Contains(text, "url") {
			t.Errorf("git would get the token:\n%s", text)
		}
	}
}

func TestATokenIsNotSentToARedirectTarget(t *testing.T) {
	elsewhere := gitserver.New(t)
	elsewhere.Create(t, "public/site.git")
	server := gitserver.New(t)
	var shown atomic.Int32
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != gitserver.Token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		shown.Add(1)
		http.Redirect(w, r, elsewhere.URL+strings.Replace(r.URL.String(), "/private/", "/public/", 1), http.StatusFound)
	})
	o := options(t, private(server, "feature"))
	o.Token = gitserver.Token
	prepare(t, o)
	if shown.Load() == 0 {
		t.Error("the token was not sent to its own host, so this test proves nothing")
	}
	if elsewhere.Anonymous.Load() == 0 {
		t.Error("the redirect was not followed")
	}
	if n := elsewhere.Authenticated.Load(); n > 0 {
		t.Errorf("%d requests sent the token to the redirect target", n)
	}
}

func TestAnUnreadableGitConfigurationIsMovedAway(t *testing.T) {
	for name, script := range map[string]string{
		"no configuration": "echo '[user' > .gitconfig", "a directory": "mkdir -p .gitconfig/in",
		"a pipe": "mkfifo .gitconfig", "a link to nothing": "ln -s nothing .gitconfig",
		"existing files of these names": "echo '[user' > .gitconfig; mkdir -p .gitconfig.unreadable/x .gitconfig.new/x",
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, nil)
			gitserver.Run(t, o.Home, "sh", "-ec", script)
			prepare(t, o)
			if author := gitserver.RunIn(t, o.Dir, o.Home, "git", "var", "GIT_AUTHOR_IDENT"); !strings.HasPrefix(author,
				"Ada Lovelace <ada@example.com>") {
				t.Errorf("the author is %s", author)
			}
			if _, err := os.Lstat(filepath.Join(o.Home, ".gitconfig.unreadable")); err != nil {
				t.Errorf("it was not moved: %v", err)
			}
		})
	}
}

func TestATokenForBitbucketMayContainTheUserName(t *testing.T) {
	for name, c := range map[string]struct{ token, userID, user, password string }{
		"an app password":            {"ada:app:password", "", "ada", "app:password"},
		"an app password and a user": {"ada:password", "somebody", "ada", "password"},
		"an API token":               {"ada@example.com:ATATT3x-0_", "", "ada@example.com", "ATATT3x-0_"},
		"an access token":            {"ATCTT3x-0_", "", "x-token-auth", "ATCTT3x-0_"},
		"an access token and a user": {"ATCTT3x-0_", "ada", "ada", "ATCTT3x-0_"},
		"another text with a colon":  {":ATCTT3x-0_", "", "x-token-auth", ":ATCTT3x-0_"},
		"a user without a password":  {"ada:", "", "x-token-auth", "ada:"},
	} {
		t.Run(name, func(t *testing.T) {
			server := gitserver.New(t)
			server.Create(t, "private/site.git")
			server.User, server.Password = c.user, c.password
			repository := private(server, "feature")
			repository.Provider, repository.UserID = v1alpha1.Bitbucket, c.userID
			o := options(t, repository)
			o.Token = c.token
			prepare(t, o)
		})
	}
}

func TestAGitLabTokenIsNotSplitAtAColon(t *testing.T) {
	remote, err := workspace.Locate(&session.Repository{Name: "acme/site", Provider: v1alpha1.GitLab})
	if err != nil {
		t.Fatal(err)
	}
	if user, password := remote.Credentials("a:b"); user != "oauth2" || password != "a:b" {
		t.Errorf("got %q, %q", user, password)
	}
}

func TestANewAttemptReplacesTheProxyInTheGitConfiguration(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	o := options(t, private(server, "feature"))
	o.Token = gitserver.Token
	existing := "[alias]\n\tst = status\n[url \"https://mirror.example.com/\"]\n\tinsteadOf = https://example.com/\n"
	if err := os.WriteFile(filepath.Join(o.Home, ".gitconfig"), []byte(existing), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"1234", "5678"} {
		o.ProxyURL, o.ProxyHeader = "http://127.0.0.1:"+port+"/git/"+server.Host()+"/", "Parley-Git: secret"
		prepare(t, o)
	}
	text := gitserver.Run(t, o.Home, "cat", ".gitconfig")
	if strings.Contains(text, "1234") || strings.Count(text, "http://127.0.0.1:5678/git/") != 2 ||
		!strings.Contains(text, "mirror.example.com") || !strings.Contains(text, "st = status") {
		t.Errorf("the configuration is\n%s", text)
	}
	for _, remote := range []string{server.URL + "/a/b.git", "git@127.0.0.1:a/b.git", "ssh://git@127.0.0.1/a/b.git"} {
		got := gitserver.RunIn(t, o.Dir, o.Home, "git", "ls-remote", "--get-url", remote)
		if want := o.ProxyURL + "a/b.git"; got != want {
			t.Errorf("%s is %s", remote, got)
		}
	}
}
