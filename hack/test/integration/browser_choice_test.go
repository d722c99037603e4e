//go:build browser

package integration_test

import (
	"fmt"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

// imageFile returns a JavaScript expression for a DataTransfer object with one image, like the data
// of a paste or of a file input.
func imageFile(name string) string {
	return fmt.Sprintf("(() => { const data = new DataTransfer(); data.items.add(new File(['x'], %q, "+
		"{ type: 'image/png' })); return data; })()", name)
}

func TestThePageSendsImages(t *testing.T) {
	f := newStubFacade(t)
	f.emit(session.StateChange(session.StateAwaiting, ""))
	b := f.opens(t, "#/c/c")
	b.waitForText("Attach images")
	for _, name := range []string{"a.png", "b.png"} {
		b.sees("(() => { const input = document.querySelector('.answer input[type=file]'); input.files = " +
			imageFile(name) + ".files; input.dispatchEvent(new Event('change')); return true; })()")
	}
	b.sees("document.querySelector('.answer textarea').dispatchEvent(new ClipboardEvent('paste', { clipboardData: " +
		imageFile("c.png") + ", bubbles: true }))")
	b.waitForText("a.png", "b.png", "c.png")
	b.sees("document.querySelector('[aria-label=\"Remove a.png\"]')?.click() === undefined")
	b.sees("document.querySelectorAll('.attached li').length === 2")
	b.press("Send")
	got := f.awaitReceived(t, 1)[0]
	if got.Message != "" || len(got.ImageURLs) != 2 || got.ImageURLs[0] != "data:image/png;base64,eA==" {
		t.Errorf("received %+v", got)
	}
	b.sees("!document.querySelector('.attached').checkVisibility()")
	b.enter(".answer textarea", "Thanks\r")
	if got := f.awaitReceived(t, 2)[1]; got.Message != "Thanks" || len(got.ImageURLs) > 0 {
		t.Errorf("received %+v", got)
	}
	b.checkErrors()
}

func TestThePageLetsAUserChooseModelAndAgent(t *testing.T) {
	f := newStubFacade(t)
	f.item = entry("c", "Line one", "STOPPED", true)
	b := f.opens(t, "#/new?from=c")
	b.sees("document.querySelector('[name=llm_model]')?.value === 'openai/gpt-5'")
	b.sees("document.querySelector('[name=agent]').placeholder === 'From settings'")
	b.sees("document.querySelector('[name=agent]').list.options[0]?.value === 'CodeActAgent'")
	b.sees("document.querySelector('[name=llm_model]').list.options[0]?.value === 'openai/gpt-5'")
	b.enter("[name=agent]", "CodeActAgent")
	b.sees("document.querySelector('[name=agent]').blur() === undefined") // the field changes when it loses the focus
	b.sees("document.querySelector('[name=llm_model]').list.options[0]?.value === 'openai/gpt-5CodeActAgent'")
	b.press("Start")
	b.sees("location.hash === '#/c/c'")
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := f.created[0]; got["llm_model"] != "openai/gpt-5" || got["agent"] != "CodeActAgent" {
		t.Errorf("created %v", got)
	}
	b.checkErrors()
}
