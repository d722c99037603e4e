//go:build browser

package integration_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/api/session"
)

// withOtherVersion returns a handler that serves a facade's page under another version.
func withOtherVersion(t *testing.T, facade http.Handler) http.Handler {
	t.Helper()
	w := httptest.NewRecorder()
	facade.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	version := regexp.MustCompile(`/page/([0-9a-f]{24})/app\.js`).FindStringSubmatch(w.Body.String())
	if version == nil {
		t.Fatalf("no version in %s", w.Body)
	}
	const other = "ffffffffffffffffffffffff"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/":
			recorded := httptest.NewRecorder()
			facade.ServeHTTP(recorded, r)
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Cache-Control", "no-store")
			_, _ = io.Copy(w, bytes.NewReader(bytes.ReplaceAll(recorded.Body.Bytes(), []byte(version[1]), []byte(other))))
		case strings.Contains(r.URL.Path, version[1]):
			http.NotFound(w, r)
		default:
			r.URL.Path = strings.Replace(r.URL.Path, other, version[1], 1)
			facade.ServeHTTP(w, r)
		}
	})
}

// During an update, a request may reach the old or the new version of the facade.
func TestThePageLoadsDuringAnUpdate(t *testing.T) {
	f := newStubFacade(t)
	f.emit(session.UserMessage("Said before.", nil))
	versions := []http.Handler{f.Config.Handler, withOtherVersion(t, f.Config.Handler)}
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		versions[rand.N(2)].ServeHTTP(w, r)
	}))
	t.Cleanup(func() { balancer.CloseClientConnections(); balancer.Close() })
	at, err := url.Parse(balancer.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, at.Host)
	b.do(chromedp.Navigate(balancer.URL + "/#/c/c"))
	b.readsOnce("Said before.")
	b.sees("sessionStorage.getItem('reloads') === null")
}

// If a file stays missing, the page must not reload itself forever.
func TestThePageReportsAMissingFileAndStopsReloading(t *testing.T) {
	f := newStubFacade(t)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/text.js") {
			http.NotFound(w, r)
			return
		}
		f.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { broken.CloseClientConnections(); broken.Close() })
	at, err := url.Parse(broken.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, at.Host)
	b.do(chromedp.Navigate(broken.URL + "/#/c/c"))
	b.sees("Number(sessionStorage.getItem('reloads')) > 0") // the page reloads itself
	b.sees("(() => { sessionStorage.setItem('reloads', 100); return true; })()")
	b.waitForText("The page could not be loaded.")
}

// The facade does not render Markdown of long texts.
func TestThePageShowsLongTextsAsPlainText(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	f.emit(session.UserMessage("Short.", nil), session.UserMessage("Long."+strings.Repeat(" word", 20_000), nil),
		session.UserMessage("Later.", nil))
	b.sees("[...document.querySelectorAll('.message')].filter((e) => " +
		"e.querySelector('.markdown:not(.plain) > p')).length === 2")
	b.sees("document.querySelector('.markdown.plain')?.textContent.startsWith('Long.')")
	b.checkErrors()
}

func TestThePageShowsTheNameOfTheUserOnPhones(t *testing.T) {
	f := newStubFacade(t)
	b := f.opens(t, "#/c/c")
	b.do(chromedp.EmulateViewport(400, 800, chromedp.EmulateMobile, chromedp.EmulateTouch))
	b.sees("document.querySelector('.who span')?.checkVisibility() && " +
		"document.querySelector('.who span').getBoundingClientRect().width > 0 && " +
		"document.querySelector('.who span').textContent === 'ada'")
	b.sees("document.documentElement.scrollWidth <= 400")
	b.checkErrors()
}
