//go:build browser

package integration_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
)

const twoSettings = `"person": "oidc:ada@example.com", "settings": [{"namespace": "red", "name": "ada"},
	{"namespace": "blue", "name": "ada"}]`

func sessionWith(namespace, name string) string {
	return fmt.Sprintf(`{"user": %q, "namespace": %q, "settings_stored": false, %s}`, name, namespace, twoSettings)
}

// people() adds the endpoints with which people sign in. Each sign-in succeeds immediately, without
// a provider.
func (f *stubFacade) people(mux *http.ServeMux) {
	current := func(w http.ResponseWriter) { _, _ = io.WriteString(w, f.session) }
	mux.HandleFunc("GET /api/session", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		namespace, name, chosen := strings.Cut(r.Header.Get(rest.SettingsHeader), "/")
		if chosen && strings.Contains(f.session, twoSettings) {
			_, _ = io.WriteString(w, sessionWith(namespace, name))
			return
		}
		current(w)
	})
	mux.HandleFunc("GET /api/signin/options", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"oidc": {"issuer": "https://id.example.com", "cli_client_id": null, "scopes": []}}`)
	})
	mux.HandleFunc("GET /api/signin/oidc", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.signIns = append(f.signIns, r.URL.Query())
		w.Header().Set("Location", r.URL.Query().Get("then"))
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("POST /api/session/settings", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.chosen = append(f.chosen, string(body))
		var chosen struct{ Namespace, Name string }
		_ = json.Unmarshal(body, &chosen)
		f.session = sessionWith(chosen.Namespace, chosen.Name)
		current(w)
	})
	mux.HandleFunc("POST /api/signout", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.session, f.signedOut = `{"user": null}`, true
		_, _ = fmt.Fprintf(w, `{"user": null, "end_session_url": "http://%s/ended"}`, r.Host)
	})
	mux.HandleFunc("GET /ended", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "Ended") })
}

func TestThePageRetriesASignInOnlyOnce(t *testing.T) {
	f := newStubFacade(t)
	f.session = `{"user": "ada", "namespace": "red", "settings_stored": false, "person": "oidc:ada@example.com",
		"settings": [{"namespace": "red", "name": "ada"}]}`
	f.emit(session.StateChange(session.StateAwaiting, ""))
	b := f.opens(t, "#/c/c")
	b.waitForText("oidc:ada@example.com")
	f.mu.Lock()
	f.signedOut = true // from now on, events get status 401
	f.mu.Unlock()
	b.enter(".answer textarea", "Hello\r")
	b.sees("performance.getEntriesByType('navigation')[0].redirectCount === 1")
	b.sees("document.querySelector('.answer textarea')?.value.trim() === 'Hello'") // the text is still there
	f.mu.Lock()
	if len(f.signIns) != 1 || f.signIns[0].Get("then") != "/#/c/c" {
		t.Errorf("the sign-ins are %v", f.signIns)
	}
	f.mu.Unlock()
	b.press("Send")
	b.waitForText("Sign in with your organisation", "Session key")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.signIns) != 1 {
		t.Errorf("the page signed in %d times", len(f.signIns))
	}
}

func TestThePageLetsAPersonChooseSettings(t *testing.T) {
	f := newStubFacade(t)
	f.list = func(url.Values) []map[string]any { return nil }
	f.session = `{"user": null, "namespace": null, "settings_stored": false, ` + twoSettings + `}`
	b := f.opens(t, "")
	b.waitForText("Choose settings", "red/ada")
	b.press("blue/ada")
	b.waitForText("No conversations yet.")
	b.sees("document.querySelector('.who select').value === 'blue/ada'")
	b.sees("(() => { const list = document.querySelector('.who select'); list.value = 'red/ada'; " +
		"list.dispatchEvent(new Event('change')); return true; })()")
	b.sees("document.querySelector('.who [title]').title === 'Namespace: red'")
	f.mu.Lock()
	if got := strings.Join(f.chosen, " "); got != `{"namespace":"blue","name":"ada"} {"namespace":"red","name":"ada"}` {
		t.Errorf("chosen: %s", got)
	}
	f.mu.Unlock()
	b.press("Sign out")
	b.sees("location.pathname === '/ended'")
	b.checkErrors()
}

// The tabs share a cookie, which names the chosen settings. After the user chooses the settings
// of another team in one tab, the messages of the other tab must still go to the first team. This
// holds even if both teams have a conversation with the same name.
func TestThePageKeepsTheSettingsOfEachTab(t *testing.T) {
	f := newStubFacade(t)
	f.list = func(url.Values) []map[string]any { return nil }
	f.session = sessionWith("red", "ada")
	f.emit(session.StateChange(session.StateAwaiting, ""))
	b := f.opens(t, "#/c/c/changes")
	shows := func(b *browser, settings string) {
		t.Helper()
		b.sees(fmt.Sprintf("document.querySelector('.who select')?.value === %q", settings))
	}
	shows(b, "red/ada")
	other := f.opensTab(t, b, "")
	shows(other, "red/ada")
	other.sees("(() => { const list = document.querySelector('.who select'); list.value = 'blue/ada'; " +
		"list.dispatchEvent(new Event('change')); return true; })()")
	other.sees("document.querySelector('.who [title]').title === 'Namespace: blue'")
	b.sees("document.querySelector('a[download]')?.search === '?settings=red%2Fada'")
	b.sees("(location.hash = '#/c/c') && true")
	b.enter(".answer textarea", "Hello\r")
	if got := f.awaitReceived(t, 1)[0]; got.settings != "red/ada" {
		t.Errorf("the message went to %q", got.settings)
	}
	b.do(chromedp.Reload())
	shows(b, "red/ada")

	f.mu.Lock()
	f.signedOut = true // the cookie has expired, and the next cookie names no settings
	f.session = `{"user": null, "namespace": null, "settings_stored": false, ` + twoSettings + `}`
	f.mu.Unlock()
	b.enter(".answer textarea", "Again\r")
	b.sees("performance.getEntriesByType('navigation')[0].redirectCount === 1")
	shows(b, "red/ada")
	b.waitForText("A talk")
	other.do(chromedp.Reload())
	shows(other, "blue/ada")
}

// After a sign-out in one tab, no other tab may renew its sign-in. If a tab did so, the provider
// would sign the person in again without asking.
func TestThePageSignsOutInAllTabs(t *testing.T) {
	f := newStubFacade(t)
	f.session = `{"user": "ada", "namespace": "red", "settings_stored": false, "person": "oidc:ada@example.com",
		"settings": [{"namespace": "red", "name": "ada"}]}`
	f.emit(session.StateChange(session.StateAwaiting, ""))
	b := f.opens(t, "#/c/c")
	b.waitForText("Your turn")
	other := f.opensTab(t, b, "#/c/c")
	other.waitForText("Your turn")
	other.enter(".answer textarea", "Hello")
	b.press("Sign out")
	b.sees("location.pathname === '/ended'")
	other.waitForText("Sign in with your organisation", "Session key")
	other.sees("sessionStorage.length === 0") // no draft is left for the next person
	b.do(chromedp.Navigate(f.URL + "/"))
	b.waitForText("Sign in with your organisation", "Session key")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.signIns) != 0 {
		t.Errorf("after the sign-out, the other tabs signed in %d times", len(f.signIns))
	}
}

// A frozen tab may get status 401 before it gets the storage event for a sign-out in another tab.
// To simulate this, the tab itself writes the sign-out to the storage: a browser sends storage
// events only to the other tabs.
func TestThePageDoesNotRenewASignInAfterASignOut(t *testing.T) {
	f := newStubFacade(t)
	f.session = sessionWith("red", "ada")
	f.emit(session.StateChange(session.StateAwaiting, ""))
	b := f.opens(t, "#/c/c")
	b.waitForText("Your turn")
	b.sees("localStorage.setItem('signed out at', '1') === undefined")
	f.mu.Lock()
	f.signedOut = true
	f.mu.Unlock()
	b.enter(".answer textarea", "Hello\r")
	b.waitForText("Sign in with your organisation", "Session key")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.signIns) != 0 {
		t.Errorf("after the sign-out, the tab signed in %d times", len(f.signIns))
	}
}

func TestThePageSaysThatAPersonHasNoSettings(t *testing.T) {
	f := newStubFacade(t)
	f.session = `{"user": null, "namespace": null, "settings_stored": false, "person": "oidc:eve@example.com",
		"settings": []}`
	b := f.opens(t, "")
	b.waitForText("No settings", "oidc:eve@example.com", "Ask your administrator", "Sign out")
	b.checkErrors()
}

func TestThePageMarksInheritedSettings(t *testing.T) {
	f := newStubFacade(t)
	f.session = `{"user": "ada", "namespace": "red", "settings_stored": true}`
	mux := http.NewServeMux()
	mux.Handle("/", f.Config.Handler)
	mux.HandleFunc("GET /api/settings", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"llm_model": "team/model", "llm_api_key_set": true, "inherited": ["llm_model",
			"llm_api_key"]}`)
	})
	mux.HandleFunc("GET /api/options/security-analyzers", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[]`)
	})
	f.Config.Handler = mux
	b := f.opens(t, "#/settings")
	b.waitForText("Settings")
	b.sees("[...document.querySelectorAll('.field')].filter((e) => e.textContent.includes('Inherited from your team.'))" +
		".map((e) => e.querySelector('label').textContent).join() === 'Model,API key'")
	b.checkErrors()
}
