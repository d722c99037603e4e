package driver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

// untilPreview waits until a preview meets a condition. It fails if a preview shows a part of a
// secret.
func (d *drive) untilPreview(condition string, met func(session.Preview) bool) session.Preview {
	d.t.Helper()
	for deadline := time.After(patience); ; {
		preview, changed := d.driver.Preview()
		if text := fmt.Sprint(preview); strings.Contains(text, "hunt") || strings.Contains(text, longSecret[:8]) {
			d.t.Fatalf("the preview shows a part of a secret: %.300s", text)
		}
		if met(preview) {
			return preview
		}
		select {
		case <-changed:
		case <-deadline:
			d.t.Fatalf("no preview %s; the last one is %+v, the events are\n%s", condition, preview,
				strings.Join(d.events(), "\n"))
		}
	}
}

func (d *drive) untilNoPreview() {
	d.t.Helper()
	d.untilPreview("is empty", func(p session.Preview) bool {
		return p.Message == "" && p.Thought == "" && p.Outputs == nil
	})
}

func outputOf(p session.Preview) string {
	if len(p.Outputs) != 1 {
		return ""
	}
	return p.Outputs[0].Content
}

const startsCommand = `{"sessionUpdate":"tool_call","toolCallId":"1","title":"x","kind":"execute",` +
	`"rawInput":{"command":"make"},"status":"pending"}`

func printsContent(text string, meta string) string {
	return `{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"in_progress","content":[{"type":"content",` +
		`"content":{"type":"text","text":"` + text + `"}}]` + meta + `}`
}

func printsDelta(text string) string {
	return `{"sessionUpdate":"tool_call_update","toolCallId":"1","_meta":{"terminal_output_delta":{"data":"` + text +
		`"}}}`
}

const partial = `,"_meta":{"parley.dev/partial":true}`

func TestTheOutputOfARunningCommandIsPreviewed(t *testing.T) {
	t.Parallel()
	for name, updates := range map[string][2]string{
		"Parley's agent": {printsContent(`one\nhun`, partial), printsContent(`one\nhunter2 two\n`, partial)},
		"a public agent": {printsContent(`one\nhun`, ""), printsContent(`one\nhunter2 two\n`, "")},
		"codex":          {printsDelta(`one\nhun`), printsDelta(`ter2 two\n`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			first, last := filepath.Join(dir, "first"), filepath.Join(dir, "last")
			d := newDrive(t, session.Document{FirstMessage: strings.Join([]string{"raw " + startsCommand,
				"raw " + updates[0], "wait " + first, "raw " + updates[1], "wait " + last,
				`raw {"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed","rawOutput":` +
					`{"output":"one\nhunter2 two\n"}}`,
				"say done"}, "\n")}).start()
			got := d.untilPreview("has output", func(p session.Preview) bool { return outputOf(p) == "one\n" })
			events := d.events()
			if action := events[got.Outputs[0].Cause]; action != "run make" || action != events[len(events)-1] {
				t.Errorf("the output belongs to %s; the events are %q", action, events)
			}
			write(t, first)
			d.untilPreview("has more output", func(p session.Preview) bool { return outputOf(p) == "one\n*** two\n" })
			write(t, last)
			d.untilSaid("done")
			d.untilNoPreview()
			d.expect(append(events, fmt.Sprintf("ran make: one\n*** two\n map[exit_code:0], of %d", got.Outputs[0].Cause),
				"agent: done", "state awaiting_user_input")...)
		})
	}
}

func TestAMessageOfTheAgentIsPreviewedWhileItIsWritten(t *testing.T) {
	t.Parallel()
	piece := func(text, meta string) string {
		return `raw {"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"` + text + `"}` + meta + `}`
	}
	for name, meta := range map[string]string{"Parley's agent": partial, "a public agent": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			first, last := filepath.Join(dir, "first"), filepath.Join(dir, "last")
			orders := []string{piece("It is hun", meta), "wait " + first, piece("ter2. ", meta), piece("Bye.", meta),
				"wait " + last}
			if meta != "" {
				orders = append([]string{piece("A broken answer", meta), piece("", meta)}, orders...)
				orders = append(orders, piece("It is hunter2. Bye.", `,"_meta":{"parley.dev/seq":1}`))
			}
			d := newDrive(t, session.Document{FirstMessage: strings.Join(orders, "\n")}).start()
			d.untilPreview("has a message", func(p session.Preview) bool { return p.Message == "It is" })
			before := d.events()
			write(t, first)
			d.untilPreview("has more", func(p session.Preview) bool { return p.Message == "It is ***. Bye." })
			d.expect(before...)
			write(t, last)
			d.untilSaid("It is ***. Bye.")
			d.untilNoPreview()
			d.expect(append(before, "agent: It is ***. Bye.", "state awaiting_user_input")...)
		})
	}
}

func TestAThoughtIsPreviewed(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "think Hm.\nhang"}).start()
	d.untilPreview("has a thought", func(p session.Preview) bool { return p.Thought == "Hm." && p.Message == "" })
}

func TestAStoppedTurnHasNoPreview(t *testing.T) {
	t.Parallel()
	for _, state := range []session.State{session.StatePaused, session.StateStopped} {
		d := newDrive(t, session.Document{FirstMessage: "raw " + startsCommand + "\nraw " + printsContent(`uno\n`, partial) +
			`
raw {"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"I am"}` + partial + `}
hang`}).start()
		d.untilPreview("has output and a message", func(p session.Preview) bool {
			return outputOf(p) == "uno\n" && p.Message == "I am"
		})
		d.change(state)
		d.until(state)
		d.untilNoPreview()
		for _, event := range d.events() {
			if !strings.HasPrefix(event, "user: ") && (strings.Contains(event, "I am") || strings.Contains(event, "uno")) {
				t.Errorf("a preview is recorded: %s", event)
			}
		}
	}
}

func TestTheOutputOfAPlainCommandIsPreviewed(t *testing.T) {
	t.Parallel()
	last := filepath.Join(t.TempDir(), "last")
	d := newDrive(t, session.Document{FirstMessage: "work", Agent: &session.Agent{Name: "plain",
		Command: []string{"sh", "-c", "echo one; until test -e " + last + "; do sleep 0.01; done; echo two"}}}).start()
	d.untilPreview("has output", func(p session.Preview) bool { return p.Message == "one" })
	write(t, last)
	d.over()
	if events := d.events(); events[len(events)-2] != "agent: one\ntwo\n" {
		t.Errorf("the events are %q", events)
	}
}

// An agent may send a lot of text. Previews must stay small and need little memory.
func TestPreviewsAreBounded(t *testing.T) {
	t.Parallel()
	var orders []string
	for i := range 50 { // many running commands with output
		id := fmt.Sprintf(`"toolCallId":"%d"`, i)
		orders = append(orders, strings.Replace(startsCommand, `"toolCallId":"1"`, id, 1),
			strings.Replace(printsContent(`one\n`, partial), `"toolCallId":"1"`, id, 1))
	}
	orders = append(orders, strings.Replace(startsCommand, `"toolCallId":"1"`, `"toolCallId":"big"`, 1))
	big := strings.Replace(printsDelta(strings.Repeat(longSecret+`\n`, 2000)), `"toolCallId":"1"`, `"toolCallId":"big"`, 1)
	for range 200 { // 18 MB of secrets
		orders = append(orders, big)
	}
	text := `{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"€ x"}` + partial + `}`
	orders = append(orders, strings.Repeat(text+"\n", 100_000))
	d := newDrive(t, session.Document{FirstMessage: "raw " + inFile(t, strings.Join(orders, "\n")) + "\nraw " +
		printsContent(`end\n`, partial) + "\nhang"}).start()
	got := d.untilPreview("has everything", func(p session.Preview) bool {
		return strings.HasSuffix(p.Message, "€ x") && len(p.Message) > 15<<10 && len(p.Outputs) == 4
	})
	if len(got.Message) > 16<<10 || !strings.HasPrefix(strings.TrimLeft(got.Message, " x"), "€") {
		t.Errorf("the message has %d bytes and begins with %q", len(got.Message), got.Message[:10])
	}
	for _, output := range got.Outputs {
		if len(output.Content) > 8<<10 || strings.Trim(output.Content, "*\nonde") != "" {
			t.Errorf("an output of %d bytes: %.100q", len(output.Content), output.Content)
		}
	}
}

func write(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
