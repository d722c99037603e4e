//go:build signin

package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func (o *organisation) settingsOf(t *testing.T, name, group string) *v1alpha1.UserSettings {
	t.Helper()
	var list v1alpha1.UserSettingsList
	if err := suite.Client.List(t.Context(), &list, client.InNamespace(o.teams[group])); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if owner := list.Items[i].Spec.Owner; owner != nil && owner.Username == "oidc:"+name+"@example.com" {
			return &list.Items[i]
		}
	}
	t.Fatalf("%s has no settings in the team %s", name, group)
	return nil
}

func TestPeopleSignInWithOpenIDInABrowser(t *testing.T) {
	o := newOrganisation(t)
	ada, bob := o.signedInBrowser(t, "ada"), o.signedInBrowser(t, "bob")
	ada.press("New")
	ada.enter("[name=initial_user_msg]", "Work.")
	ada.press("Start")
	ada.waitForText("Done by red.")
	id, err := chromedp.Run(ada.ctx, chromedp.Evaluate[string]("location.hash.split('/')[2]"))
	if err != nil {
		t.Fatal(err)
	}
	settings := o.settingsOf(t, "ada", "red")
	for call, want := range map[[3]string]string{
		{"GET", "/api/conversations/" + id, ""}:                              "200 null", // as for a missing conversation
		{"GET", "/api/conversations/" + id + "/events", ""}:                  "404 ",
		{"GET", "/api/conversations/" + id + "/git/patch", ""}:               "404 ",
		{"POST", "/api/conversations/" + id + "/message", `{"message":"x"}`}: "404 ",
		{"POST", "/api/conversations/" + id + "/stop", ""}:                   "404 ",
		{"DELETE", "/api/conversations/" + id, ""}:                           "200 false",
		{"POST", "/api/session/settings", fmt.Sprintf(`{"namespace":%q,"name":%q}`, settings.Namespace,
			settings.Name)}: "403 ",
	} {
		if got := bob.call(call[0], call[1], call[2]); !strings.HasPrefix(got, want) {
			t.Errorf("%s %s of the other team: answered %s, want %s", call[0], call[1], got, want)
		}
	}
	if got := ada.call("GET", "/api/conversations/"+id, ""); !strings.Contains(got, `"status":"RUNNING"`) {
		t.Errorf("her own conversation: answered %s", got)
	}
	if lines := o.auditLines(t, "oidc:ada@example.com", id); len(lines) == 0 {
		t.Error("the audit log has no line about the conversation")
	}
	other := newTab(ada.ctx, t, strings.TrimPrefix(o.facade, "http://"))
	other.do(chromedp.Navigate(o.facade + "/#/c/" + id))
	other.waitForText("Done by red.")
	stolen := ada.cookie(o.facade, "parley")
	if _, answer := get(t, o.facade+"/api/session", stolen); answer["person"] != "oidc:ada@example.com" {
		t.Errorf("the cookie is of %v", answer["person"])
	}
	ada.press("Sign out")
	ada.sees(fmt.Sprintf("location.href.startsWith(%q)", o.issuer+"/session/end"))
	if _, answer := get(t, o.facade+"/api/session", stolen); answer["person"] != nil {
		t.Errorf("after the sign-out, a copy of the cookie is of %v", answer["person"])
	}
	other.waitForText("Sign in with your organisation") // although the session at the provider has not ended yet
	ada.do(chromedp.Navigate(o.facade + "/"))
	ada.waitForText("Sign in with your organisation")
}

func TestAnOpenIDSignInCannotBeReplayed(t *testing.T) {
	o := newOrganisation(t)
	b := o.opensFacade(t)
	var mu sync.Mutex
	var callback string
	watchEvents(b, network.RequestWillBeSent, func(e network.EventRequestWillBeSent) string {
		if strings.Contains(e.Request.URL, "/api/signin/callback") {
			mu.Lock()
			defer mu.Unlock()
			callback = e.Request.URL
		}
		return ""
	})
	b.press("Sign in with your organisation")
	b.do(chromedp.WaitVisible(chromedp.CSS("input[name=login]")))
	cookies := b.cookies(o.facade)
	begun := slices.IndexFunc(cookies, func(c *http.Cookie) bool { return strings.HasPrefix(c.Name, "parley-signin-") })
	if begun < 0 {
		t.Fatal("the unfinished sign-in has no cookie")
	}
	flow := cookies[begun]
	b.signsIn("ada")
	b.waitForText("oidc:ada@example.com")
	mu.Lock()
	used := callback
	mu.Unlock()
	changed := func(old, replacement string) string { return strings.Replace(used, old, replacement, 1) }
	for name, attempt := range map[string]struct {
		address string
		cookies []*http.Cookie
	}{
		"without its cookie": {used, nil},
		"with its cookie":    {used, []*http.Cookie{flow}},
		"with another state": {changed("state=", "state=x"), []*http.Cookie{flow}},
		"with a forged code": {changed("code=", "code=x"), []*http.Cookie{flow}},
		"to another host":    {o.facade + "/api/signin/oidc?then=//evil.example", nil},
	} {
		if code, _ := get(t, attempt.address, attempt.cookies...); code/100 != 4 {
			t.Errorf("a replay %s: answered %d", name, code)
		}
	}
	b.do(chromedp.Navigate(used))
	b.sees("document.body.innerText.includes('used')")
	b.do(chromedp.Navigate(o.facade + "/"))
	b.waitForText("oidc:ada@example.com") // the replays did not end the sign-in
}

func TestThePageRenewsAnExpiredOpenIDSignIn(t *testing.T) {
	o := newOrganisation(t)
	o.set(t, "lifetime?seconds=4")
	b := o.opensFacade(t)
	b.press("Sign in with your organisation")
	b.signsIn("ada")
	b.waitForText("oidc:ada@example.com")
	testenv.Await(t, func() error {
		if code, answer := get(t, o.facade+"/api/session", b.cookies(o.facade)...); answer["person"] != nil {
			return fmt.Errorf("answered %d %v", code, answer)
		}
		return nil
	})
	o.set(t, "lifetime?seconds=600")
	b.press("Settings")
	b.sees("location.hash === '#/settings' && document.querySelector('form.settings')")
	if _, answer := get(t, o.facade+"/api/session", b.cookies(o.facade)...); answer["person"] != "oidc:ada@example.com" {
		t.Errorf("after the renewal, the cookie is of %v", answer["person"])
	}
}

// cli runs the plugin as a person who has no rights in Kubernetes.
func (o *organisation) cli(t *testing.T, home string, in string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	command := o.command(ctx, home, args...)
	command.Stdin = strings.NewReader(in)
	output, err := command.CombinedOutput()
	if bytes.Contains(output, []byte("eyJ")) {
		t.Errorf("%v prints a token", args)
	}
	return string(output), err
}

func (o *organisation) command(ctx context.Context, home string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, program("kubectl-parley"), args...)
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "none"),
		"PARLEY_FACADE=" + o.facade}
	return command
}

var codePrompt = regexp.MustCompile(`Open (\S+)\nand enter the code (\S+)`)

// logsIn signs a person in over the device flow. It returns the home directory of the person.
func (o *organisation) logsIn(t *testing.T, name string, args ...string) (home string) {
	t.Helper()
	home = t.TempDir()
	var output testenv.Log
	command := o.command(t.Context(), home, append([]string{"login"}, args...)...)
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var prompt []string
	testenv.Await(t, func() error {
		if prompt = codePrompt.FindStringSubmatch(output.String()); prompt == nil {
			return errors.New(output.String())
		}
		return nil
	})
	b := o.opensFacade(t)
	b.do(chromedp.Navigate(prompt[1]))
	b.enter("input[name=user_code]", prompt[2])
	b.press("Continue")
	b.waitForText("Confirm Device")
	b.press("Continue")
	b.signsIn(name)
	if err := command.Wait(); err != nil || !strings.Contains(output.String(), "oidc:"+name+"@example.com") {
		t.Fatalf("login: %v, %s", err, &output)
	}
	return home
}

func TestPeopleSignInWithOpenIDOverTheDeviceFlow(t *testing.T) {
	o := newOrganisation(t)
	o.set(t, "lifetime?seconds=10") // the tokens expire soon, so each request refreshes its token
	ada, bob := o.logsIn(t, "ada"), o.logsIn(t, "bob")
	run := func(home, in, want string, args ...string) {
		t.Helper()
		if output, err := o.cli(t, home, in, args...); err != nil || !strings.Contains(output, want) {
			t.Errorf("%v: %v, %s", args, err, output)
		}
	}
	refused := func(home, want string, args ...string) {
		t.Helper()
		if output, err := o.cli(t, home, "x\n", args...); err == nil || !strings.Contains(output, want) {
			t.Errorf("%v: %v, %s", args, err, output)
		}
	}
	settings := o.settingsOf(t, "ada", "red")
	run(ada, "", "* "+settings.Namespace+"/"+settings.Name, "whoami")
	run(ada, "", "started", "start", "talk", "--message=Work.")
	run(ada, "Again.\n", "Done by red.", "chat", "talk")
	run(ada, "", "talk  RUNNING", "status")
	run(ada, "", "stopped", "stop", "talk")
	for _, command := range []string{"chat", "diff", "stop", "start", "status"} {
		refused(bob, "not found", command, "talk")
		refused(bob, "may not use these settings", command, "talk", "--settings="+settings.Namespace+"/"+settings.Name)
	}
	run(bob, "", "started", "start", "talk", "--message=Work.") // another team may use the same conversation ID

	var all sync.WaitGroup
	for range 5 {
		all.Go(func() { run(ada, "", "oidc:ada@example.com", "whoami") })
	}
	all.Wait()
	o.set(t, "remove?person=bob")
	refused(bob, "kubectl parley login", "status")
	run(ada, "", "Signed out.", "logout")
	refused(ada, "kubectl parley login", "whoami")
}

// This test runs the sign-in commands of docs/people.md. The tests of `make run` run the other
// commands of this guide.
func TestTheSignInCommandsInTheGuideWorkWithOpenID(t *testing.T) {
	o := newOrganisation(t)
	guide, err := os.ReadFile(testenv.Path("docs", "people.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(guide), "https://parley.example.com", o.facade)
	found := regexp.MustCompile(`(?m)^    kubectl parley login (.*)\n((?:^    .*\n)+)`).FindStringSubmatch(text)
	if found == nil || strings.Count(found[2], "\n") < 4 {
		t.Fatalf("the guide has the commands %q", found)
	}
	home := o.logsIn(t, "ada", strings.Fields(found[1])...)
	shell := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", found[2])
	shell.Env = []string{"HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "none"), "PATH=" + strings.Join([]string{
		filepath.Dir(program("x")), os.Getenv("KUBEBUILDER_ASSETS"), os.Getenv("PATH")}, ":")}
	output, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\nanswers\n%s", err, found[2], output)
	}
	for _, want := range []string{"oidc:ada@example.com", "fix-login started", "Done by red.", "Signed out."} {
		if !strings.Contains(string(output), want) {
			t.Errorf("the guide's commands answer without %s:\n%s", want, output)
		}
	}
}
