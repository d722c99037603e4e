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
)

func TestTheTokenIsNotStoredOnDisk(t *testing.T) {
	server := newGitServer(t)
	server.create(t, "private/site.git")
	o := options(t, private(server, "feature"))
	o.Token = token
	prepare(t, o)
	for _, root := range []string{o.Dir, o.Home} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			if bytes.Contains(text, []byte(token)) || bytes.Contains(text,
				[]byte(base64.StdEncoding.EncodeToString([]byte(user+":"+token)))) {
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
	server := newGitServer(t)
	server.create(t, "public/site.git")
	o := options(t, &session.Repository{Name: server.URL + "/public/site.git", Provider: v1alpha1.GitHub})
	o.Token = token
	prepare(t, o)
	if n := server.authenticated.Load(); n > 0 {
		t.Errorf("%d requests to another host had the token", n)
	}
	if _, err := os.Stat(filepath.Join(o.Home, ".gitconfig")); err == nil {
		if text := run(t, o.Home, "cat", ".gitconfig"); strings.Contains(text, "credential") {
			t.Errorf("git would get the token:\n%s", text)
		}
	}
}

func TestATokenIsNotSentToARedirectTarget(t *testing.T) {
	elsewhere := newGitServer(t)
	elsewhere.create(t, "public/site.git")
	server := newGitServer(t)
	var shown atomic.Int32
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		shown.Add(1)
		http.Redirect(w, r, elsewhere.URL+strings.Replace(r.URL.String(), "/private/", "/public/", 1), http.StatusFound)
	})
	o := options(t, private(server, "feature"))
	o.Token = token
	prepare(t, o)
	if shown.Load() == 0 {
		t.Error("the token was not sent to its own host, so this test proves nothing")
	}
	if elsewhere.anonymous.Load() == 0 {
		t.Error("the redirect was not followed")
	}
	if n := elsewhere.authenticated.Load(); n > 0 {
		t.Errorf("%d requests sent the token to the redirect target", n)
	}
}

func TestAnUnreadableGitConfigurationIsMoved(t *testing.T) {
	for name, script := range map[string]string{
		"no configuration": "echo '[user' > .gitconfig", "a directory": "mkdir -p .gitconfig/in",
		"a pipe": "mkfifo .gitconfig", "a link to nothing": "ln -s nothing .gitconfig",
		"existing files of these names": "echo '[user' > .gitconfig; mkdir -p .gitconfig.unreadable/x .gitconfig.new/x",
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, nil)
			run(t, o.Home, "sh", "-ec", script)
			prepare(t, o)
			if author := runIn(t, o.Dir, o.Home, "git", "var", "GIT_AUTHOR_IDENT"); !strings.HasPrefix(author,
				"Ada Lovelace <ada@example.com>") {
				t.Errorf("the author is %s", author)
			}
			if _, err := os.Lstat(filepath.Join(o.Home, ".gitconfig.unreadable")); err != nil {
				t.Errorf("it was not moved: %v", err)
			}
		})
	}
}

// helper returns a credential helper for git that answers like Credential.
func helper(t *testing.T, remote *workspace.Remote, token string) string {
	t.Helper()
	var answer bytes.Buffer
	question := "protocol=" + remote.URL.Scheme + "\nhost=" + remote.URL.Host + "\n\n"
	if err := workspace.Credential(remote, token, strings.NewReader(question), &answer); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "it's here")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "helper")
	text := "#!/bin/sh\n[ \"$1 $2\" = 'git-credential get' ] && cat <<'E'\n" + answer.String() + "E\ntrue\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return script
}

func TestTheAgentCanPushWithoutAStoredToken(t *testing.T) {
	server := newGitServer(t)
	server.create(t, "private/site.git")
	repository := private(server, "feature")
	remote, err := workspace.Locate(repository)
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, repository)
	o.Token, o.Helper = token, helper(t, remote, token)
	// Another helper of the user must not get the token.
	stored := filepath.Join(o.Home, "stored")
	existing := "[alias]\n\tst = status\n[credential]\n\thelper = store --file=" + stored + "\n"
	if err := os.WriteFile(filepath.Join(o.Home, ".gitconfig"), []byte(existing), 0o600); err != nil {
		t.Fatal(err)
	}
	got := prepare(t, o)
	prepare(t, o) // a second start changes nothing
	commit(t, got.Dir, "new", "fourth")
	runIn(t, got.Dir, o.Home, "git", "push", "-q", "origin", "HEAD:refs/heads/pushed")
	if pushed := run(t, filepath.Join(server.root, "private/site.git"), "git", "rev-parse", "pushed"); pushed != run(t,
		got.Dir, "git", "rev-parse", "HEAD") {
		t.Errorf("pushed %s", pushed)
	}
	if _, err := os.Stat(stored); err == nil {
		t.Error("the token was stored by another helper")
	}
	if alias := runIn(t, got.Dir, o.Home, "git", "config", "alias.st"); alias != "status" {
		t.Errorf("the user's setting is lost: %q", alias)
	}
	if helpers := runIn(t, got.Dir, o.Home, "git", "config", "--get-all", "credential."+server.URL+
		".helper"); strings.Count(helpers, "git-credential") != 1 {
		t.Errorf("the helpers are %q", helpers)
	}
}

func TestBitbucketGetsTheUserAndPasswordOfAToken(t *testing.T) {
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
			server := newGitServer(t)
			server.create(t, "private/site.git")
			server.user, server.password = c.user, c.password
			repository := private(server, "feature")
			repository.Provider, repository.UserID = v1alpha1.Bitbucket, c.userID
			remote, err := workspace.Locate(repository)
			if err != nil {
				t.Fatal(err)
			}
			o := options(t, repository)
			o.Token, o.Helper = c.token, helper(t, remote, c.token)
			got := prepare(t, o)
			runIn(t, got.Dir, o.Home, "git", "fetch", "-q", "origin")
		})
	}
}

func TestOtherProvidersTokensMayHaveAColon(t *testing.T) {
	remote, err := workspace.Locate(&session.Repository{Name: "acme/site", Provider: v1alpha1.GitLab})
	if err != nil {
		t.Fatal(err)
	}
	var answer bytes.Buffer
	err = workspace.Credential(remote, "a:b", strings.NewReader("protocol=https\nhost=gitlab.com\n\n"), &answer)
	if want := "username=oauth2\npassword=a:b\n"; err != nil || answer.String() != want {
		t.Errorf("got %q, %v", answer.String(), err)
	}
}

func TestCredentialAnswersOnlyForTheTokensHost(t *testing.T) {
	remote, err := workspace.Locate(&session.Repository{Name: "acme/site", Provider: v1alpha1.GitLab})
	if err != nil {
		t.Fatal(err)
	}
	for question, want := range map[string]string{
		"protocol=https\nhost=gitlab.com\n\n":      "username=oauth2\npassword=" + token + "\n",
		"protocol=https\nhost=gitlab.com":          "username=oauth2\npassword=" + token + "\n",
		"protocol=http\nhost=gitlab.com\n\n":       "",
		"protocol=https\nhost=evil.example\n\n":    "",
		"protocol=https\nhost=gitlab.com:8443\n\n": "",
		"protocol=https\nhost=gitlab.com.evil\n\n": "",
		"host=gitlab.com\n\nprotocol=https\n":      "",
	} {
		var answer bytes.Buffer
		if err := workspace.Credential(remote, token, strings.NewReader(question), &answer); err != nil ||
			answer.String() != want {
			t.Errorf("%q: got %q, %v", question, answer.String(), err)
		}
	}
}
