//go:build gitea

package integration_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// person returns a person whose settings contain Gitea's token.
func (g *gitea) person(t *testing.T, steps ...scriptedmodel.Step) *person {
	t.Helper()
	return newPerson(t, map[string]any{"git_user_name": "Ada", "git_user_email": "ada@example.com",
		"secrets_store": map[string]any{"provider_tokens": map[string]any{
			"github": map[string]any{"token": g.token, "host": g.host}}}}, steps...)
}

// work starts a conversation about ada/site, as kubectl does, and waits until the turn is over. The
// idle timeout is short, because only a session that ends by itself has a result.
func (p *person) work(t *testing.T, id string, g *gitea) {
	t.Helper()
	if err := suite.Client.Create(t.Context(), &v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: id},
		Spec: v1alpha1.ConversationSpec{UserSettingsName: p.name, Repository: new("http://" + g.host + "/ada/site.git"),
			GitProvider: new(v1alpha1.GitHub), InitialUserMsg: new("work"),
			IdleTimeout: &metav1.Duration{Duration: 15 * time.Second}},
	}); err != nil {
		t.Fatal(err)
	}
	p.awaitState(t, id, v1alpha1.StateRunning)
	p.awaitAgent(t, id, session.StateAwaiting)
}

func tool(name string, input map[string]any) scriptedmodel.Call {
	return scriptedmodel.Call{Name: name, Input: scriptedmodel.Input(input)}
}

// addHook is a command that adds a pre-push hook. While git pushes, the hook reads the environments
// and the command lines of other processes. It writes them to a file beside the clone. It skips the
// supervisor and the runtime, which have the token.
const addHook = `mkdir -p .git/hooks && printf '%s\n' '#!/bin/sh' 'for p in /proc/[0-9]*; do ` +
	`case $(tr "\0" "\n" < $p/cmdline | head -n 1) in */supervisor|*/runtime) ;; *) cat $p/environ $p/cmdline; esac; ` +
	`done > ../processes 2> /dev/null' 'exit 0' > .git/hooks/pre-push && chmod +x .git/hooks/pre-push`

// checkHook is a command that looks for git-remote-http, the process with which git pushes, in the
// file that the hook wrote. If it finds the process, it removes the hook. The file also contains
// the text of checkHook, in the command line of the agent's shell. Because of its brackets, the
// pattern does not match this text.
const checkHook = `tr '\0' ' ' < ../processes | grep -q 'remote-[h]ttp' && rm .git/hooks/pre-push && echo copied`

func TestTheAgentOpensAPullRequestOnGitea(t *testing.T) {
	g := startGitea(t)
	host, _, _ := strings.Cut(g.host, ":")
	ada := g.person(t,
		says("", bash(addHook)),
		says("", bash("git switch -q -c fix && echo fixed > fixed && git add . && git commit -q -m fixed && "+
			"git push -q origin fix && "+checkHook+" && git fetch -q --all && echo pushed-$(git rev-parse origin/fix)")),
		says("", bash("git lfs install && git lfs track '*.bin' && echo large > a.bin && git add . && "+
			"git commit -q -m lfs && git push -q origin fix && git clone -q -b fix git@"+host+":ada/site.git ../again && "+
			"sed s/^/lfs-/ ../again/a.bin && git -C ../again lfs ls-files")),
		says("", tool("create_pull_request", map[string]any{"title": "Fix it", "body": "It was broken."})),
		says("", tool("create_pull_request", map[string]any{"title": "Fix it again"})), // finds the first pull request
		says("", tool("comment", map[string]any{"number": 1, "body": "Ready for review"})),
		says("", tool("read_git_host", map[string]any{"path": "/issues/1/comments"})),
		says("Done."))
	ada.work(t, "tool", g)
	said := contents(ada.events(t, "tool"))
	for _, want := range []string{"copied", "pushed-", "lfs-large", "* a.bin", "Pull request: " + g.link(1),
		g.link(1) + "#issuecomment-", `"body":"Ready for review"`} {
		if !strings.Contains(said, want) {
			t.Errorf("the events lack %q:\n%s", want, said)
		}
	}
	if got, want := g.pulls(t), []string{"1 Fix it: fix into main"}; !slices.Equal(got, want) {
		t.Errorf("the pull requests are %q, want %q", got, want)
	}
	isCopy := func(path string) bool { return filepath.Base(path) == "processes" }
	if searched := ada.agentHasNoToken(t, "tool", g.token); !slices.ContainsFunc(searched, isCopy) {
		t.Errorf("the copy of the processes is not among the %d searched files", len(searched))
	}
	ada.endsWith(t, "tool", g.link(1), 1)
}

func TestAUserOpensAPullRequestOnGitea(t *testing.T) {
	g := startGitea(t)
	ada := g.person(t, says("", bash("echo more > more; rm README.md")), says("Done."))
	ada.work(t, "button", g)
	const path, body = "/api/conversations/button/git/", `{"title":"Add more","body":"As asked."}`
	if got := decode[session.Published](t, ada.wants(t, 200, "POST", path+"push", body)); got.Running {
		t.Errorf("the push takes too long: %+v", got)
	}
	if got := g.pulls(t); len(got) > 0 {
		t.Errorf("a push opened pull requests: %q", got)
	}
	for range 2 { // the second click finds the pull request of the first
		got := decode[session.Published](t, ada.wants(t, 200, "POST", path+"pull-request", body))
		if want := (session.Published{URL: g.link(1)}); got != want {
			t.Errorf("the page gets %+v, want %+v", got, want)
		}
	}
	if got, want := g.pulls(t), []string{"1 Add more: parley/button into main"}; !slices.Equal(got, want) {
		t.Errorf("the pull requests are %q, want %q", got, want)
	}
	var files []struct{ Filename, Status string }
	if err := g.call("GET", "/repos/ada/site/pulls/1/files", "", &files); err != nil || len(files) != 2 {
		t.Errorf("the files of the pull request are %v, %v", files, err)
	}
	ada.agentHasNoToken(t, "button", g.token)
	ada.endsWith(t, "button", g.link(1), 1)
}

// endsWith waits for the end of a session. It checks that the session's result and the list of
// conversations contain the link.
func (p *person) endsWith(t *testing.T, id, link string, number int64) {
	t.Helper()
	p.awaitState(t, id, v1alpha1.StateStopped)
	if result := p.conversation(t, id).Status.Result; result == nil || result.PullRequest != link {
		t.Errorf("the result is %+v, want the link %s", result, link)
	}
	testenv.Await(t, func() error { // the facade lists from its cache
		list := decode[rest.ConversationPage](t, p.wants(t, 200, "GET", "/api/conversations", ""))
		for _, c := range list.Results {
			if c.ConversationID == id && c.PullRequest != nil && *c.PullRequest == link &&
				slices.Equal(c.PRNumber, []int64{number}) {
				return nil
			}
		}
		return fmt.Errorf("the list is %+v", list.Results)
	})
}

func contents(events []session.Event) string {
	var all []string
	for _, e := range events {
		if e.Content != nil {
			all = append(all, *e.Content)
		}
		all = append(all, e.Message)
	}
	return strings.Join(all, "\n")
}

// agentHasNoToken searches for the git token in the environment and the command line of each
// process of the agent, and in every file of the session. It returns the paths of the searched
// files.
func (p *person) agentHasNoToken(t *testing.T, id, token string) (searched []string) {
	t.Helper()
	forms := [][]byte{[]byte(token)}
	for _, user := range []string{"x-access-token", "oauth2", "ada", token} {
		forms = append(forms, []byte(base64.StdEncoding.EncodeToString([]byte(user+":"+token))))
	}
	has := func(text []byte) bool {
		return slices.ContainsFunc(forms, func(form []byte) bool { return bytes.Contains(text, form) })
	}
	dir := filepath.Join(suite.dir, "state", "pods", podUID(t, p, id))
	supervisor, agents := processesIn(t, dir)
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", supervisor)); len(agents) == 0 || !has(text) {
		t.Fatalf("the supervisor was started with the token, but the search does not find it: %v; the agent's "+
			"processes are %v", err, agents)
	}
	for _, pid := range agents {
		for _, file := range []string{"environ", "cmdline"} {
			if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file)); err != nil || has(text) {
				t.Errorf("%s of process %d has the git token, or cannot be read: %v", file, pid, err)
			}
		}
	}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		searched = append(searched, path)
		text, err := os.ReadFile(path)
		if has(text) {
			t.Errorf("%s has the git token", path)
		}
		return err
	})
	if err != nil || len(searched) < 10 {
		t.Errorf("%d files of the session were searched: %v", len(searched), err)
	}
	return searched
}
