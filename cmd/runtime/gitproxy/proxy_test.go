package gitproxy_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/runtime/gitproxy"
	"github.com/parley-dev/parley/cmd/runtime/secrets"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
	"github.com/parley-dev/parley/hack/test/gitserver"
)

// prepared is a clone whose git is configured to use a proxy.
type prepared struct {
	*workspace.Workspace
	home, address, header string
}

func prepare(t *testing.T, server *gitserver.Server) *prepared {
	t.Helper()
	repository := &session.Repository{Name: server.URL + "/private/site.git", Provider: v1alpha1.GitHub,
		Host: server.Host(), Branch: "feature"}
	remote, err := workspace.Locate(repository)
	if err != nil {
		t.Fatal(err)
	}
	proxy := gitproxy.New(gitproxy.Options{Remote: remote, Token: gitserver.Token,
		Mask: secrets.New(map[string]string{session.ProviderTokenFile: gitserver.Token}).Mask,
		Busy: func() func() { return func() {} }})
	local := httptest.NewServer(proxy)
	t.Cleanup(local.Close)
	p := &prepared{home: t.TempDir()}
	p.address, p.header = proxy.At(local.URL)
	p.Workspace, err = workspace.Prepare(t.Context(), workspace.Options{Dir: t.TempDir(), Home: p.home,
		Repository: repository, Token: gitserver.Token, UserName: "Ada", UserEmail: "ada@example.com",
		ProxyURL: p.address, ProxyHeader: p.header, Log: slog.New(slog.DiscardHandler), Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *prepared) git(t *testing.T, args ...string) string {
	t.Helper()
	return gitserver.RunIn(t, p.Dir, p.home, append([]string{"git"}, args...)...)
}

// request sends a request to the proxy. The header has the form "name: value". An empty header is not
// sent.
func (p *prepared) request(t *testing.T, method, url, header, body string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if name, value, ok := strings.Cut(header, ": "); ok {
		request.Header.Set(name, value)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

func TestGitCanCloneFetchAndPushWithoutTheToken(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	p := prepare(t, server)
	gitserver.Commit(t, p.Dir, "new", "fourth")
	large := make([]byte, 3<<20) // git sends more than 1 MiB in chunks
	for i, seed := 0, [32]byte{}; i < len(large); i += 32 {
		seed = sha256.Sum256(seed[:])
		copy(large[i:], seed[:])
	}
	if err := os.WriteFile(filepath.Join(p.Dir, "large"), large, 0o600); err != nil {
		t.Fatal(err)
	}
	p.git(t, "add", ".")
	p.git(t, "commit", "-q", "-m", "large")
	p.git(t, "push", "-q", "origin", "HEAD:refs/heads/pushed")
	if pushed := gitserver.Run(t, filepath.Join(server.Root, "private/site.git"), "git", "rev-parse",
		"pushed"); pushed != p.git(t, "rev-parse", "HEAD") {
		t.Errorf("pushed %s", pushed)
	}
	p.git(t, "fetch", "-q", "--unshallow", "origin")
	for i, remote := range []string{server.URL + "/private/site.git", "git@127.0.0.1:private/site.git",
		"ssh://git@127.0.0.1/private/site.git"} {
		p.git(t, "clone", "-q", remote, filepath.Join(p.home, fmt.Sprint("clone", i)))
	}
	for _, file := range []string{filepath.Join(p.home, ".gitconfig"), filepath.Join(p.Dir, ".git/config")} {
		if text := gitserver.Run(t, p.home, "cat", file); strings.Contains(text, gitserver.Token) {
			t.Errorf("%s has the token", file)
		}
	}
}

func TestOnlyGitRequestsOfTheSessionAreForwarded(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	p := prepare(t, server)
	before := server.Authenticated.Load()
	site := p.address + "private/site.git/"
	refs := site + "info/refs?service=git-upload-pack"
	for name, c := range map[string]struct{ method, url, header string }{
		"no secret":         {http.MethodGet, refs, ""},
		"a wrong secret":    {http.MethodGet, refs, "Parley-Git: guess"},
		"another host":      {http.MethodGet, strings.Replace(refs, server.Host(), "github.com", 1), p.header},
		"the API":           {http.MethodGet, p.address + "api/v3/user", p.header},
		"another service":   {http.MethodGet, site + "info/refs?service=other", p.header},
		"a page":            {http.MethodGet, p.address + "settings/tokens", p.header},
		"a parent":          {http.MethodPost, p.address + "private/site.git/info/lfs/%2e%2e/git-upload-pack", p.header},
		"an encoded slash":  {http.MethodPost, p.address + "api%2Fv3/x/git-upload-pack", p.header},
		"another method":    {http.MethodDelete, site + "git-receive-pack", p.header},
		"the dumb protocol": {http.MethodGet, site + "HEAD", p.header},
		"more parameters":   {http.MethodGet, refs + "&private_token=x", p.header},
	} {
		code, _, _ := p.request(t, c.method, c.url, c.header, "")
		if code != http.StatusForbidden && code != http.StatusNotFound {
			t.Errorf("%s: status %d", name, code)
		}
	}
	if server.Authenticated.Load() != before {
		t.Error("a refused request reached the host with the token")
	}
	if code, _, _ := p.request(t, http.MethodGet, refs, p.header, ""); code != http.StatusOK {
		t.Errorf("git's own request: status %d", code)
	}
}

func TestTheTokenDoesNotFollowARedirect(t *testing.T) {
	elsewhere := gitserver.New(t)
	elsewhere.Create(t, "public/site.git")
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	p := prepare(t, server)
	server.Redirect(func(r *http.Request) string {
		switch {
		case strings.HasPrefix(r.URL.Path, "/moved/"):
			return strings.Replace(r.URL.String(), "/moved/", "/private/", 1)
		case strings.HasPrefix(r.URL.Path, "/away/"):
			return elsewhere.URL + strings.Replace(r.URL.String(), "/away/", "/public/", 1)
		}
		return ""
	})
	p.git(t, "clone", "-q", server.URL+"/moved/site.git", filepath.Join(p.home, "moved"))
	p.git(t, "clone", "-q", server.URL+"/away/site.git", filepath.Join(p.home, "away"))
	if elsewhere.Authenticated.Load() > 0 || elsewhere.Anonymous.Load() == 0 {
		t.Errorf("the other host got %d requests with credentials and %d without", elsewhere.Authenticated.Load(),
			elsewhere.Anonymous.Load())
	}
}

func TestResponsesOfTheHostDoNotContainTheToken(t *testing.T) {
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	p := prepare(t, server)
	var status int
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "session=stolen")
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "you sent "+r.Header.Get("Authorization"))
	})
	encoded := base64.StdEncoding.EncodeToString([]byte(gitserver.User + ":" + gitserver.Token))
	for want, got := range map[int]int{http.StatusForbidden: http.StatusUnauthorized,
		http.StatusNotFound: http.StatusNotFound, http.StatusInternalServerError: http.StatusInternalServerError} {
		status = got
		code, header, text := p.request(t, http.MethodGet, p.address+"private/site.git/info/refs?service=git-upload-pack",
			p.header, "")
		all := fmt.Sprint(header, text)
		if code != want || strings.Contains(all, encoded) || strings.Contains(all, gitserver.Token) ||
			strings.Contains(all, "stolen") || header.Get("WWW-Authenticate") != "" {
			t.Errorf("status %d of the host is %d: %s", got, code, all)
		}
	}
}

// lfsHost is a host that stores LFS objects itself. Like Gitea and GitLab, it answers a
// batch request with actions that contain the Authorization header of the request.
type lfsHost struct {
	mu      sync.Mutex
	url     string
	objects map[string][]byte
}

func (h *lfsHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, rest, _ := strings.Cut(r.URL.Path, "/info/lfs/")
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	if oid, ok := strings.CutPrefix(rest, "objects/"); ok && oid != "batch" {
		oid, _, _ = strings.Cut(oid, "/")
		if r.Method == http.MethodPut {
			h.objects[oid], _ = io.ReadAll(r.Body)
		}
		_, _ = w.Write(h.objects[oid])
		return
	}
	var asked struct {
		Operation string `json:"operation"`
		Objects   []struct {
			OID  string `json:"oid"`
			Size int    `json:"size"`
		} `json:"objects"`
	}
	_ = json.NewDecoder(r.Body).Decode(&asked)
	var objects []any
	for _, object := range asked.Objects {
		action := map[string]any{"href": h.url + at + "/info/lfs/objects/" + object.OID,
			"header": map[string]string{"Authorization": r.Header.Get("Authorization"), "Accept": "*/*"}}
		objects = append(objects, map[string]any{"oid": object.OID, "size": object.Size,
			"actions": map[string]any{asked.Operation: action}})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": objects})
}

func lfsServer(t *testing.T) (*gitserver.Server, *lfsHost) {
	t.Helper()
	server := gitserver.New(t)
	server.Create(t, "private/site.git")
	host := &lfsHost{url: server.URL, objects: map[string][]byte{}}
	server.ServeAPI(host)
	return server, host
}

func TestLFSObjectsAreTransferredWithoutTheToken(t *testing.T) {
	server, host := lfsServer(t)
	p := prepare(t, server)
	content := []byte("a large picture")
	sum := sha256.Sum256(content)
	oid := hex.EncodeToString(sum[:])
	for _, operation := range []string{"upload", "download"} {
		body := fmt.Sprintf(`{"operation":%q,"transfers":["basic"],"objects":[{"oid":%q,"size":%d}]}`, operation, oid,
			len(content))
		code, _, text := p.request(t, http.MethodPost, p.address+"private/site.git/info/lfs/objects/batch", p.header, body)
		if code != http.StatusOK || strings.Contains(text, "Authorization") {
			t.Fatalf("status %d: %s", code, text)
		}
		var answer struct {
			Objects []struct {
				Size    int
				Actions map[string]struct {
					Href   string
					Header map[string]string
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Objects) != 1 ||
			answer.Objects[0].Size != len(content) {
			t.Fatalf("%v: %s", err, text)
		}
		action := answer.Objects[0].Actions[operation]
		if !strings.HasPrefix(action.Href, p.address) || action.Header["Accept"] != "*/*" {
			t.Fatalf("the action is %+v", action)
		}
		method, sent := http.MethodGet, ""
		if operation == "upload" {
			method, sent = http.MethodPut, string(content)
		}
		code, _, text = p.request(t, method, action.Href, "Parley-Git: "+action.Header["Parley-Git"], sent)
		if code != http.StatusOK || text != string(content) {
			t.Errorf("%s: status %d: %s", operation, code, text)
		}
	}
	if !bytes.Equal(host.objects[oid], content) {
		t.Error("the host did not get the object")
	}
}

func TestGitLFSPushesAndPullsThroughTheProxy(t *testing.T) {
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Skip("git-lfs is not installed")
	}
	server, host := lfsServer(t)
	p := prepare(t, server)
	p.git(t, "lfs", "install")
	p.git(t, "lfs", "track", "*.bin")
	if err := os.WriteFile(filepath.Join(p.Dir, "picture.bin"), []byte("a large picture"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.git(t, "add", ".")
	p.git(t, "commit", "-q", "-m", "picture")
	p.git(t, "push", "-q", "origin", "HEAD:refs/heads/pushed")
	if len(host.objects) != 1 {
		t.Fatalf("the host has %d objects", len(host.objects))
	}
	clone := filepath.Join(p.home, "clone")
	p.git(t, "clone", "-q", "--branch", "pushed", "git@127.0.0.1:private/site.git", clone)
	if got := gitserver.Run(t, clone, "cat", "picture.bin"); got != "a large picture" {
		t.Errorf("the clone has %q", got)
	}
}
