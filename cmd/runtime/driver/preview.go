package driver

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/api/session"
)

const (
	// previewInterval is the minimum time between two previews.
	previewInterval = 250 * time.Millisecond
	// maxPreview bounds the message in a preview, in bytes. maxPreviewOutput bounds each command
	// output, also in bytes. maxPreviewOutputs bounds the number of outputs.
	maxPreview        = 16 << 10
	maxPreviewOutput  = 8 << 10
	maxPreviewOutputs = 4
	// maxProgress bounds a running call's content, in bytes. Previews do not show larger content.
	maxProgress = 1 << 20
	// maxSecret is the length of the longest line of a secret, in bytes. A truncated text may begin
	// within a secret, and the mask does not recognize the rest of that secret. Previews therefore
	// omit the first line of a truncated text, but at most maxSecret bytes of it.
	maxSecret = session.MaxSecret
)

// takePartial stores a part of an unfinished message, or a running command's output so far.
func (t *translator) takePartial(u *update) {
	switch u.Kind {
	case acp.MessageChunk, acp.ThoughtChunk:
		text := textOf(u.Content)
		if text == "" || t.partialKind != u.Kind {
			t.partial = tail{texts: t.texts}
		}
		t.partialKind = u.Kind
		_, _ = t.partial.Write([]byte(text))
	case acp.ToolUpdate:
		if c := t.calls[t.id(u.ID)]; c != nil {
			t.progressed(c, u.Content)
		}
	}
}

// progressed stores a running command's latest content, which replaces the earlier content.
func (t *translator) progressed(c *call, content json.RawMessage) {
	if c.ToolKind != kindExecute || c.observed {
		return
	}
	if hasValue(content) && len(content) <= maxProgress {
		c.progress = content
	}
	if c.progress == nil && c.printed.buffer.Len() == 0 || slices.Contains(t.printing, c) {
		return
	}
	t.printing = append(slices.DeleteFunc(t.printing, func(c *call) bool { return c.observed }), c)
	t.printing = t.printing[max(0, len(t.printing)-maxPreviewOutputs):]
}

// previewCache holds the last preview. All readers share it until the preview changes.
type previewCache struct {
	mu      sync.Mutex
	changed chan struct{}
	events  int
	preview session.Preview
}

// Preview returns the unfinished texts of the current turn, which no event contains yet. The
// channel is closed when the preview may have changed. A new channel stays open for at least
// previewInterval.
func (d *Driver) Preview() (session.Preview, <-chan struct{}) {
	cache := &d.previews
	cache.mu.Lock()
	defer cache.mu.Unlock()
	d.mu.Lock()
	if d.previewed == nil {
		d.previewed = make(chan struct{})
	}
	events := d.Journal.Len()
	if d.previewed == cache.changed && events == cache.events {
		d.mu.Unlock()
		return cache.preview, cache.changed
	}
	cache.changed, cache.events = d.previewed, events
	message, outputs := d.unfinished()
	d.mu.Unlock()

	// Masking is slow, and it must not block the agent. d.mu is therefore unlocked here.
	cache.preview = session.Preview{}
	text := strings.TrimSpace(d.previewEnd(message.text, maxPreview))
	if message.kind == acp.ThoughtChunk {
		cache.preview.Thought = text
	} else {
		cache.preview.Message = text
	}
	for _, o := range outputs {
		content := d.previewEnd(cmp.Or(o.text, textOf(o.progress)), maxPreviewOutput)
		if content != "" {
			cache.preview.Outputs = append(cache.preview.Outputs, session.CommandOutput{Cause: o.action, Content: content})
		}
	}
	return cache.preview, cache.changed
}

type unfinishedText struct {
	kind     string
	text     string
	action   int
	progress json.RawMessage
}

// unfinished returns the texts of the current turn that no event contains yet; d.mu is held.
func (d *Driver) unfinished() (message unfinishedText, outputs []unfinishedText) {
	if !d.working {
		return message, nil
	}
	t := d.translator
	message = unfinishedText{kind: t.kind, text: t.streamed.end(maxPreview + maxSecret)}
	if t.kind == "" {
		message = unfinishedText{kind: t.partialKind, text: t.partial.end(maxPreview + maxSecret)}
	}
	for _, c := range t.printing {
		if action, recorded := d.history.actions[c.ID]; recorded && !c.observed && !d.history.observed[c.ID] {
			outputs = append(outputs, unfinishedText{action: action, text: c.printed.end(maxPreviewOutput + maxSecret),
				progress: c.progress})
		}
	}
	return message, outputs
}

// message collects the output of a plain command. The output becomes the agent's message.
type message struct{ *Driver }

func (m message) Write(text []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wakePreviews()
	m.translator.partialKind = acp.MessageChunk
	return m.translator.partial.Write(text)
}

// take returns all output and removes it from the preview.
func (m message) take() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	text := m.translator.partial.String()
	m.translator.flush()
	return m.texts.text(text)
}

func (d *Driver) previewEnd(text string, most int) string {
	text = text[max(0, len(text)-most-maxSecret):]
	end := d.MaskUnfinished(text)
	if len(text) == most+maxSecret { // the text may begin within a secret; each line of a secret is masked separately
		line := strings.IndexByte(end[:min(len(end), maxSecret)], '\n')
		if line < 0 {
			line = min(len(end), maxSecret) - 1
		}
		end = end[line+1:]
	}
	return strings.ToValidUTF8(end[max(0, len(end)-most):], "")
}

// wakePreviews waits for previewInterval in the background, and then closes the channel that
// Preview returned. The caller holds d.mu.
func (d *Driver) wakePreviews() {
	if d.previewed == nil || d.previewDue {
		return
	}
	d.previewDue = true
	time.AfterFunc(previewInterval, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		close(d.previewed)
		d.previewed, d.previewDue = nil, false
	})
}
