//go:build browser

package integration_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const finalAnswer = `The greeting is **friendlier** now:

- ` + "`greet`" + ` takes a name
- an empty name greets the world

| before | now |
|---|---|
| hello | Hello, Ada! |`

func plan(states ...string) scriptedmodel.Call {
	var tasks []map[string]any
	for i, title := range []string{"Read the code", "Change the greeting", "Say what changed"} {
		tasks = append(tasks, map[string]any{"id": fmt.Sprint(i + 1), "title": title, "status": states[i], "notes": ""})
	}
	return scriptedmodel.Call{Name: "task_tracker", Input: scriptedmodel.Input(map[string]any{"command": "plan",
		"task_list": tasks})}
}

// A user signs in, works with an agent, and reads the session after its pod is deleted.
func TestThePageWorksFromSignInToTheArchive(t *testing.T) {
	ada, model := newcomer(t,
		says("I will look at the code first.", plan("in_progress", "todo", "todo"), bash("cat file")),
		says("", plan("done", "in_progress", "todo"), bash("printf 'Hello, Ada!\\n' >> file; echo '# Greetings' > "+
			"README.md")),
		says(finalAnswer, plan("done", "done", "done")), says("It is done."),
		says("You are **welcome**. Nothing else is left to do."))
	host, err := url.Parse(ada.url)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, host.Host)
	ada.signsIn(b)
	ada.storesSettings(b, model)
	ada.wants(t, 200, "POST", "/api/conversations", `{"conversation_id": "broken", "repository": `+
		`"file:///nowhere/at-all"}`)
	ada.startsAConversation(t, b)

	b.waitForText("Run this command?")
	b.press("Conversations")
	b.waitForText("Needs attention", "Needs approval", "waits for approval", "Failed", "nowhere/at-all")
	b.sees("[...document.querySelectorAll('.row')].find((row) => " +
		"row.textContent.includes('Failed')).querySelector('.why').textContent !== ''")
	b.screenshot("conversations")
	b.press("Make the greeting friendlier.")
	for range 2 {
		b.waitForText("Run this command?")
		b.sees("document.querySelector('.confirm code').textContent !== '' && document.querySelector('.tool[open] " +
			".status').textContent === 'needs approval'")
		b.sees(answerable)
		b.screenshot("approve")
		b.approve()
		b.sees("!document.querySelector('.confirm:not([hidden])')")
	}
	b.waitForText("Hello, Ada!", "Plan: 3 of 3 done", "Your turn")
	b.sees("document.querySelector('.message.agent strong')?.textContent === 'friendlier'")
	b.enter(".answer textarea", "Thank you!\r")
	b.waitForText("Thank you!", "Nothing else is left to do.", "Your turn")
	b.waitForText("tokens in")
	b.sees("(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight < " +
		"5)(document.querySelector('.timeline'))")
	b.screenshot("conversation")

	b.press("Files")
	b.press("README.md")
	b.waitForText("# Greetings", "Download all")
	b.screenshot("files")
	ada.readsTheDiff(b)

	b.press("Stop")
	b.waitForText("Stopped manually")
	ada.awaitNoPod(t)
	b.do(chromedp.Reload())
	ada.readsTheDiff(b)
	b.press("Conversation")
	b.waitForText("Thank you!", "Nothing else is left to do.", "The conversation is stopped.")
	b.sees("document.querySelector('.message.agent strong')?.textContent === 'friendlier'")
	b.waitForText("tokens in")
	b.screenshot("stopped")
	ada.looksElsewhere(b)
	b.press("Sign out")
	b.waitForText("Session key")
	b.checkErrors()
}

func (p *person) signsIn(b *browser) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(1100, 800), chromedp.Navigate(p.url+"/"))
	b.waitForText("Sign in")
	b.screenshot("signin")
	b.enter("#key", p.key+"\r")
	b.waitForText("No conversations yet.", "choose a model first")
	cookies, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.cookie"))
	if err != nil || cookies != "" {
		b.t.Errorf("a script can read %q, %v", cookies, err)
	}
}

func (p *person) storesSettings(b *browser, model string) {
	b.t.Helper()
	b.press("Settings")
	b.waitForText("Budget per turn")
	b.enter("[name=llm_model]", "scripted/model")
	b.enter("[name=llm_base_url]", model)
	b.enter("[name=llm_api_key]", "a-key-that-is-never-shown")
	b.choose("[name=confirmation_mode]", "true")
	b.press("Save")
	b.waitForText("Settings saved")
	b.sees("document.querySelector('[name=llm_api_key]')?.placeholder.startsWith('Saved')")
	b.sees("!document.documentElement.outerHTML.includes('a-key-that-is-never-shown') && " +
		"document.querySelector('[name=llm_api_key]').value === ''")
	b.screenshot("settings")
}

func (p *person) startsAConversation(t *testing.T, b *browser) {
	t.Helper()
	b.press("New")
	b.enter("[name=initial_user_msg]", "Make the greeting friendlier.")
	b.enter("[name=repository]", makeGreetings(t))
	b.press("More options")
	b.enter("[name=conversation_instructions]", "Be brief.")
	b.press("More options")
	b.screenshot("new")
	b.press("Start")
	b.waitForText("Make the greeting friendlier.")
}

// makeGreetings makes a repository whose URL is short enough for screenshots.
func makeGreetings(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	to := filepath.Join(dir, "greetings")
	if err := os.Rename(strings.TrimPrefix(repository(t), "file://"), to); err != nil {
		t.Fatal(err)
	}
	return "file://" + to
}

func (p *person) readsTheDiff(b *browser) {
	b.t.Helper()
	b.press("Changes")
	b.waitForText("2 files changed")
	b.sees("[...document.querySelectorAll('.diff .added')].some((row) => row.textContent.includes('Hello, Ada!'))")
	b.screenshot("changes")
}

// looksElsewhere shows the list of conversations in dark mode on a phone.
func (p *person) looksElsewhere(b *browser) {
	b.t.Helper()
	b.press("Conversations")
	b.waitForText("Make the greeting friendlier.", "Stopped")
	b.dark(true)
	b.do(chromedp.EmulateViewport(400, 800))
	b.sees("document.documentElement.scrollWidth <= 400")
	b.sees("document.querySelector('.who span').checkVisibility() && " +
		"document.querySelector('.who span').getBoundingClientRect().width > 0")
	b.screenshot("phone")
	b.dark(false)
	b.do(chromedp.EmulateViewport(1100, 800))
}

// awaitNoPod waits until all pods are deleted, except the pod of the failed session, which stays
// for its log.
func (p *person) awaitNoPod(t *testing.T) {
	t.Helper()
	testenv.Await(t, func() error {
		var pods corev1.PodList
		if err := suite.Client.List(t.Context(), &pods, client.InNamespace(p.namespace)); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if !strings.Contains(pod.Name, "broken") {
				return fmt.Errorf("%s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
}

// The link has the same form as the link that `make run` prints. Its code must not stay in the
// page's address.
func TestALinkSignsAUserIn(t *testing.T) {
	ada := newPerson(t, nil)
	host, err := url.Parse(ada.url)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, host.Host)
	link := ada.url + decode[rest.SignInLink](t, ada.wants(t, 200, "POST", "/api/signin/link", "")).Path
	b.do(chromedp.Navigate(link))
	b.confirmsSignIn()
	b.waitForText("No conversations yet.")
	b.sees("location.pathname === '/' && !location.href.includes('code')")
	b.checkErrors()
	used := strings.TrimPrefix(link, ada.url+"/signin#code=")
	stranger := &person{url: ada.url}
	code, _ := stranger.do(t, "POST", "/api/signin", `{"replace": true, "code": "`+used+`"}`)
	if code != 403 && code != 401 {
		t.Errorf("the second use of the link gets the status %d", code)
	}
}

// checkErrors must report every error, because all other tests of the page rely on it.
func TestThePageCannotHideErrorsFromTheTests(t *testing.T) {
	ada, _ := newcomer(t)
	host, err := url.Parse(ada.url)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, host.Host)
	b.do(chromedp.Navigate(ada.url + "/"))
	b.waitForText("Sign in")
	b.checkErrors()
	for expression, want := range map[string]string{
		"console.error('x')":                                 "console.error",
		"void fetch('/nowhere')":                             "404",
		"void setTimeout(() => { throw new Error('x'); })":   "Uncaught",
		"void (new Image().src = 'https://other.example/x')": "Content Security Policy",
	} {
		if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[chromedp.Void](expression)); err != nil {
			t.Fatal(err)
		}
		testenv.Await(t, func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if !strings.Contains(strings.Join(b.wrong, "\n"), want) {
				return fmt.Errorf("after %s the errors are %v", expression, b.wrong)
			}
			return nil
		})
	}
}

// A stranger may have sent the link. The page therefore shows the user name and asks before it
// signs in, even if nobody is signed in.
func TestALinkNeedsConfirmation(t *testing.T) {
	ada, bob := newPerson(t, nil), newPerson(t, nil)
	host, err := url.Parse(ada.url)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, host.Host)
	follow := func(p *person) {
		t.Helper()
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(p.url+decode[rest.SignInLink](t, p.wants(t, 200, "POST",
			"/api/signin/link", "")).Path))
		b.waitForText("Sign in as "+p.name+"?", p.namespace)
		b.sees("location.pathname === '/' && !location.href.includes('code')")
	}
	in := func(p *person) {
		t.Helper()
		b.waitForText("No conversations yet.")
		b.sees(fmt.Sprintf("document.querySelector('.who [title]')?.title === 'Namespace: %s'", p.namespace))
	}
	follow(bob)
	b.press("Cancel")
	b.waitForText("Session key")
	follow(ada)
	b.confirmsSignIn()
	in(ada)
	follow(bob)
	b.press("Cancel")
	in(ada)
	follow(bob)
	b.confirmsSignIn()
	in(bob)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = slices.DeleteFunc(b.wrong, func(text string) bool { return strings.Contains(text, "about:blank") })
	if len(b.wrong) > 0 {
		t.Errorf("in the browser:\n%s", strings.Join(b.wrong, "\n"))
	}
}
