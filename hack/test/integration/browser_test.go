//go:build browser

package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/parley-dev/parley/hack/test/testenv"
)

// maxPicture limits the size of a screenshot in bytes, because the repository contains the
// screenshots.
const maxPicture = 150 << 10

type browser struct {
	t   *testing.T
	ctx context.Context
	// pictures is the directory for screenshots. If it is empty, no screenshots are saved.
	pictures string

	mu    sync.Mutex
	wrong []string
}

func startBrowser(t *testing.T, host string) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is missing: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.WindowSize(1100, 800))
	allocated, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	return newTab(allocated, t, host)
}

// newTab opens a tab in the parent's browser, and starts the browser if necessary. The browser
// treats all its tabs as visible.
func newTab(parent context.Context, t *testing.T, host string) *browser {
	t.Helper()
	ctx, cancel := chromedp.NewContext(parent)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx, pictures: os.Getenv("PARLEY_PICTURES")}
	watchEvents(b, log.EntryAdded, func(e log.EventEntryAdded) string {
		if e.Entry.Level != log.EntryLevelError && e.Entry.Level != log.EntryLevelWarning {
			return ""
		}
		if strings.HasSuffix(e.Entry.URL, "/api/signin") && strings.Contains(e.Entry.Text, "409") {
			return "" // expected: a sign-in link needs confirmation
		}
		return fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL)
	})
	watchEvents(b, runtime.ExceptionThrown, func(e runtime.EventExceptionThrown) string {
		return fmt.Sprintf("%+v", e.ExceptionDetails)
	})
	watchEvents(b, runtime.ConsoleAPICalled, func(e runtime.EventConsoleAPICalled) string {
		if e.Type != runtime.ConsoleAPICalledTypeError && e.Type != runtime.ConsoleAPICalledTypeAssert {
			return ""
		}
		return fmt.Sprintf("console.%s", e.Type)
	})
	watchEvents(b, network.RequestWillBeSent, func(e network.EventRequestWillBeSent) string {
		to, err := url.Parse(e.Request.URL)
		if err == nil && (to.Host == host || to.Scheme == "data" || to.Scheme == "blob") {
			return ""
		}
		return "a request to " + e.Request.URL
	})
	return b
}

// watchEvents calls wrong() with each event of one type. If wrong() returns a text, checkErrors
// reports this text.
func watchEvents[E any](b *browser, of cdp.Event[E], wrong func(E) string) {
	events := chromedp.Events(b.ctx, of)
	go func() {
		for event, err := range events {
			if err != nil {
				return
			}
			if text := wrong(event); text != "" {
				b.mu.Lock()
				b.wrong = append(b.wrong, text)
				b.mu.Unlock()
			}
		}
	}()
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, testTimeout)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.screenshot("failed")
		b.t.Fatalf("%v; on the page: %.2000s", err, b.text())
	}
}

func (b *browser) text() string {
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
	if err != nil {
		return err.Error()
	}
	return text
}

// sees waits until a JavaScript expression is true.
func (b *browser) sees(expression string) {
	b.t.Helper()
	testenv.Await(b.t, func() error {
		is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && !is {
			err = fmt.Errorf("false: %s; on the page: %.3000s", expression, b.text())
		}
		return err
	})
}

func (b *browser) waitForText(texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		b.sees(fmt.Sprintf("document.body.innerText.includes(%q)", text))
	}
}

// press clicks the button or link with this text.
func (b *browser) press(words string) {
	b.t.Helper()
	found := fmt.Sprintf("[...document.querySelectorAll('button, a, summary, a .title')].find((e) => "+
		"e.checkVisibility() && e.textContent.trim() === %q)", words)
	b.sees(found)
	b.do(chromedp.Click(chromedp.JSPath(found)))
}

func (b *browser) enter(selector, text string) {
	b.t.Helper()
	b.do(chromedp.WaitVisible(chromedp.CSS(selector)), chromedp.SendKeys(chromedp.CSS(selector), text))
}

func (b *browser) choose(selector, value string) {
	b.t.Helper()
	b.do(chromedp.SetValue(chromedp.CSS(selector), value))
}

func (b *browser) dark(is bool) {
	b.t.Helper()
	scheme := map[bool]string{false: "light", true: "dark"}[is]
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

func (b *browser) screenshot(name string) {
	b.t.Helper()
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Error(err)
		return
	}
	small, err := compress(picture)
	if err != nil || len(small) > maxPicture {
		b.t.Errorf("the picture %s has %d bytes, %v", name, len(small), err)
	}
	if b.pictures == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(b.pictures, name+".png"), small, 0o644); err != nil {
		b.t.Error(err)
	}
}

// compress compresses a picture as much as possible, without loss.
func compress(picture []byte) ([]byte, error) {
	decoded, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, decoded)
	return out.Bytes(), err
}

func (b *browser) checkErrors() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.wrong) > 0 {
		b.t.Errorf("in the browser:\n%s", strings.Join(b.wrong, "\n"))
	}
}
