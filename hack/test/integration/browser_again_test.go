//go:build browser

package integration_test

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// begin signs in with a link that leads to a conversation.
func (p *person) begin(t *testing.T, b *browser, id string) {
	t.Helper()
	link := decode[rest.SignInLink](t, p.wants(t, 200, "POST", "/api/signin/link", "")).Path
	b.do(chromedp.EmulateViewport(1100, 800), chromedp.Navigate(p.url+link+"&then="+id))
	b.confirmsSignIn()
	b.sees("location.hash === '#/c/" + id + "'")
}

func (b *browser) confirmsSignIn() {
	b.t.Helper()
	b.sees("document.querySelector('[role=alertdialog] button.main')")
	b.do(chromedp.Click(chromedp.CSS("[role=alertdialog] button.main")))
}

func (b *browser) readsOnce(text string) {
	b.t.Helper()
	b.waitForText(text)
	b.sees("[...document.querySelectorAll('.message')].filter((e) => e.textContent.includes('" + text + "')).length === 1")
}

func TestThePageReconnectsToARestartedFacade(t *testing.T) {
	address := facadeenv.FreeAddress()
	start := func() *facadeenv.Facade {
		t.Helper()
		facade, err := suite.StartFacadeAt(address, program("facade"), "--user-rate=0",
			"--archive=https://"+suite.ArchiveAddress, archiveCA())
		if err != nil {
			t.Fatal(err)
		}
		return facade
	}
	facade := start()
	ada := newPerson(t, nil, says("First answer."), says("Second answer."))
	elsewhere := *ada
	ada.url = facade.URL
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	b := startBrowser(t, address)
	ada.begin(t, b, "talk")
	b.readsOnce("First answer.")
	facade.Kill()
	b.waitForText("Connecting…")
	elsewhere.wants(t, 200, "POST", "/api/conversations/talk/message", `{"message": "While you were away."}`)
	elsewhere.awaitAgent(t, "talk", session.StateAwaiting)
	facade = start()
	t.Cleanup(func() { _ = facade.Stop() })
	b.readsOnce("While you were away.")
	b.readsOnce("Second answer.")
	b.readsOnce("First answer.")
	b.sees("!document.body.innerText.includes('Connecting…')")
	// Requests got no response while the facade was down. The browser may record these errors, but
	// no others.
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = slices.DeleteFunc(b.wrong, func(text string) bool { return strings.Contains(text, "net::ERR_") })
	if len(b.wrong) > 0 {
		t.Errorf("in the browser:\n%s", strings.Join(b.wrong, "\n"))
	}
}

func TestThePagePlaysSoundsAndUploadsFilesAndRenamesConversations(t *testing.T) {
	ada := newPerson(t, map[string]any{"enable_sound_notifications": true}, says("First answer."), says("Second answer."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	host, err := url.Parse(ada.url)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, host.Host)
	ada.begin(t, b, "talk")
	b.readsOnce("First answer.")

	b.press("Rename")
	b.enter("dialog input", "A better title\r")
	b.waitForText("Renamed")
	b.sees("document.querySelector('h1').textContent === 'A better title' && !document.querySelector('dialog')")

	b.press("Files")
	file := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(file, []byte("what the person wrote"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.waitForText("Upload")
	b.do(chromedp.SetUploadFiles(chromedp.CSS("input[type=file]"), []string{file}))
	b.waitForText("Uploaded files: 1")
	b.press("notes.txt")
	b.waitForText("what the person wrote")

	b.press("Conversation")
	b.readsOnce("First answer.")
	// Count the tones of the page's sound. Each tone needs an oscillator.
	b.sees(`(() => {
		const make = AudioContext.prototype.createOscillator;
		window.tones = 0;
		AudioContext.prototype.createOscillator = function () { window.tones += 1; return make.call(this); };
		return true;
	})()`)
	b.enter(".answer textarea", "Go on\r")
	b.readsOnce("Second answer.")
	b.sees("window.tones === 2")
	b.checkErrors()
}

func TestThePageShowsEachFailureOnce(t *testing.T) {
	ada := newPerson(t, nil, scriptedmodel.Step{Failure: &scriptedmodel.Failure{Kind: scriptedmodel.NoSuchModel},
		Times: 9})
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateError)
	host, err := url.Parse(ada.url)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, host.Host)
	ada.begin(t, b, "talk")
	b.sees("document.querySelectorAll('.timeline .line.error').length === 1")
	b.enter(".answer textarea", "Again\r")
	b.sees("document.querySelectorAll('.timeline .line.error').length === 2")
	b.do(chromedp.Reload())
	b.sees("document.querySelectorAll('.timeline .line.error').length === 2")
	b.checkErrors()
}
