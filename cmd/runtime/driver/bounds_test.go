package driver_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

// updatesFile writes a file of updates, which the stub agent sends. In an update, %s stands for the
// text, encoded as JSON.
func updatesFile(t *testing.T, text string, updates ...string) string {
	t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return inFile(t, strings.ReplaceAll(strings.Join(updates, "\n"), "%s", string(quoted)))
}

func inFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// cutting has an entry for each kind of text that the driver truncates. Each function returns the
// document of a session that sends such a text.
var cutting = map[string]func(t *testing.T, text string) session.Document{
	"a message": agentTells(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%s}}`),
	"a thought": agentTells(`{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":%s}}`),
	"a task":    agentTells(`{"sessionUpdate":"plan","entries":[{"content":%s,"status":"pending"}]}`),
	"a title": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"read","title":%s,"status":"completed"}`,
		`{"sessionUpdate":"tool_call","toolCallId":"2","kind":"think","title":%s,"status":"completed"}`),
	"a command": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"execute","title":"x",` +
		`"status":"completed","rawInput":{"command":%s}}`),
	"the words of a command list": agentTells(
		`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"execute","title":"x","status":"completed",` +
			`"rawInput":{"command":["echo",%s]}}`),
	"a path": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"read","title":"x","status":"completed",`+
		`"locations":[{"path":%s}]}`,
		`{"sessionUpdate":"tool_call","toolCallId":"2","kind":"edit","title":"x","status":"completed",`+
			`"content":[{"type":"diff","path":%s,"newText":"b"}]}`),
	"a tool": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"other","name":%s,` +
		`"status":"completed"}`),
	"an argument": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"other","title":"x",` +
		`"status":"completed","rawInput":{"a":[%s]}}`),
	"many arguments": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"other","title":"x",` +
		`"status":"completed","rawInput":{"a":[` +
		strings.TrimSuffix(strings.Repeat("%s,", 10), ",") + `]}}`),
	"a file": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"edit","title":"x","status":"completed",` +
		`"content":[{"type":"diff","path":"a","oldText":%s,"newText":%s}],"rawInput":{"new":%s}}`),
	"a result": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"other",` +
		`"title":"x","status":"completed","rawOutput":%s}`),
	"a raw result": agentTells(`{"sessionUpdate":"tool_call","toolCallId":"1","kind":"other",` +
		`"title":"x","status":"completed","rawOutput":{"new":%s}}`),
	"an update of an unknown kind": agentTells(`{"sessionUpdate":"dance","steps":%s}`),
	"streamed output": func(t *testing.T, text string) session.Document {
		const bit = `{"sessionUpdate":"tool_call_update","toolCallId":"1","kind":"execute","title":"x",` +
			`"_meta":{"terminal_output_delta":{"data":%s}}}`
		var lines []string
		for rest := text; rest != ""; rest = rest[min(8000, len(rest)):] {
			quoted, _ := json.Marshal(rest[:min(8000, len(rest))])
			lines = append(lines, strings.ReplaceAll(bit, "%s", string(quoted)))
		}
		lines = append(lines, `{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed"}`)
		return session.Document{FirstMessage: "raw " + inFile(t, strings.Join(lines, "\n"))}
	},
	"noise": func(t *testing.T, text string) session.Document {
		return session.Document{FirstMessage: "noise " + inFile(t, text)}
	},
	"an error": func(t *testing.T, text string) session.Document {
		return session.Document{FirstMessage: "fail " + inFile(t, text)}
	},
	"the output of a command": func(t *testing.T, text string) session.Document {
		return session.Document{FirstMessage: "x", Agent: &session.Agent{Name: "sh", Command: []string{"cat",
			inFile(t, text)}}}
	},
	"the output of the setup": func(t *testing.T, text string) session.Document {
		return session.Document{
			FirstMessage: "x", Agent: &session.Agent{Name: "sh", Command: []string{"true"}},
			Repository: &session.Repository{Name: "setup " + inFile(t, text)},
		}
	},
	"a notice": func(_ *testing.T, text string) session.Document {
		return session.Document{FirstMessage: "x", Instructions: text, Agent: &session.Agent{Name: "sh",
			Command: []string{"true"}}}
	},
}

func agentTells(updates ...string) func(*testing.T, string) session.Document {
	return func(t *testing.T, text string) session.Document {
		return session.Document{FirstMessage: "raw " + updatesFile(t, text, updates...)}
	}
}

func TestTruncatedTextsContainNoPartOfASecret(t *testing.T) {
	t.Parallel()
	for place, doc := range cutting {
		for name, secret := range map[string]struct {
			value string
			size  int
		}{"a key": {longSecret, 100 << 10}, "a key of several lines": {pemSecret, 100 << 10},
			"a key in much text": {longSecret, 900 << 10}} {
			t.Run(place+" and "+name, func(t *testing.T) {
				t.Parallel()
				// The text consists mostly of secrets, so every cut is likely to fall into a
				// secret.
				text := strings.Repeat(secret.value+" and then ", secret.size/len(secret.value))
				checkCut(t, doc(t, text), text)
			})
		}
	}
}

func checkCut(t *testing.T, doc session.Document, text string) {
	t.Helper()
	doc.OneShot = true
	d := newDrive(t, doc)
	if doc.Repository != nil {
		d.setup("cat " + strings.TrimPrefix(doc.Repository.Name, "setup "))
	}
	d.start().over()
	if doc.Instructions != "" {
		d.driver.Notice(text)
	}
	lines, err := d.journal.Lines(0, d.journal.Len())
	if err != nil {
		t.Fatal(err)
	}
	records := d.log.String()
	for _, line := range lines {
		records += string(line) + "\n"
	}
	for _, secret := range []string{longSecret, pemSecret} {
		for i := range len(secret) - 8 {
			if part := secret[i : i+8]; strings.Contains(records, part) {
				t.Fatalf("%q is recorded", part)
			}
		}
	}
	if !strings.Contains(records, "***") {
		t.Errorf("the text is not recorded: %.1000s", records)
	}
}

func TestOversizedTextsOfEventsAreOmitted(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 17<<20)
	const most = "17760256 bytes left out" // all but 64 KiB
	const call = `{"sessionUpdate":"tool_call","toolCallId":"1","status":"completed",`
	for name, c := range map[string]struct{ update, says string }{
		"content": {call + `"kind":"read","title":"x","content":[{"type":"content","content":{"type":"text",` +
			`"text":%s}}]}`, most},
		"a title":  {call + `"kind":"other","title":%s}`, most},
		"a path":   {call + `"kind":"read","title":"x","locations":[{"path":%s}]}`, most},
		"an input": {call + `"kind":"edit","title":"x","rawInput":{"new":%s}}`, "bytes left out"},
		"a list":   {call + `"kind":"other","title":"x","rawInput":[%s]}`, "bytes left out"},
		"a name":   {`{"sessionUpdate":"tool_call","toolCallId":%s,"kind":"read","title":"x","status":"completed"}`, ""},
		"many tasks": {`{"sessionUpdate":"plan","entries":[` + strings.Repeat(`{},`, 400_000) + `{"content":"last"}]}`,
			"tasks of 4 bytes."},
		"an unknown kind": {`{"sessionUpdate":"dance","steps":%s}`, "bytes left out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDrive(t, session.Document{FirstMessage: "raw " + updatesFile(t, large, c.update)}).start()
			d.until(session.StateAwaiting)
			if err := d.driver.Message("say two", nil, ""); err != nil {
				t.Fatal(err)
			}
			d.wait("the answer", func() bool { _, said := d.driver.State(); return said == "two" })
			lines, err := d.journal.Lines(3, 5)
			if err != nil {
				t.Fatal(err)
			}
			if text := fmt.Sprintf("%s", lines); !strings.Contains(text, c.says) {
				t.Errorf("the events do not say %q: %.300s", c.says, text)
			}
		})
	}
}

func TestOversizedInstructionsDoNotEndTheSession(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say one", Instructions: strings.Repeat("<", 3<<20)}).start()
	d.until(session.StateAwaiting)
	if got := strings.Join(d.events(), "\n"); !strings.Contains(got, "agent: one") {
		t.Errorf("the events are\n%.2000s", got)
	}
}

func TestATruncatedErrorSaysHowManyBytesAreOmitted(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "fail " + inFile(t, strings.Repeat("x", 200<<10))}).start()
	d.until(session.StateError)
	lines, err := d.journal.Lines(0, d.journal.Len())
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%s", lines); strings.Count(got, "139264 bytes left out") != 2 {
		t.Errorf("the error and the state do not both have the number of omitted bytes: %.300s", got[max(0, len(got)-2000):])
	}
}

func TestALongReasonOfAFailedAgentStartIsTruncated(t *testing.T) {
	t.Parallel()
	d := newDrive(t, session.Document{FirstMessage: "say one"})
	refusal := filepath.Join(d.dir, "heard.refusal")
	if err := os.WriteFile(refusal, []byte(strings.Repeat(longSecret+"<", 500_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start().until(session.StateError)
	if got := strings.Join(d.events(), "\n"); !strings.Contains(got, "the agent stub cannot be started: ***<***") ||
		!strings.Contains(got, "bytes left out") || len(got) > 1<<20 {
		t.Errorf("in %d bytes it says %.500s", len(got), got)
	}
	if err := os.Remove(refusal); err != nil {
		t.Fatal(err)
	}
	if err := d.driver.Message("say two", nil, ""); err != nil {
		t.Fatal(err)
	}
	d.wait("the answer", func() bool { _, said := d.driver.State(); return said == "two" })
}

func TestALongReasonOfAFailedSessionStartIsTruncated(t *testing.T) {
	t.Parallel()
	j, err := journal.Open(filepath.Join(t.TempDir(), "events.jsonl"), masking.Mask)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.Close() }()
	if err := driver.Failed(j, strings.Repeat(longSecret+"<", 500_000)); err != nil {
		t.Fatal(err)
	}
	if size := j.Size(0); j.Len() != 2 || size > 2<<20 {
		t.Errorf("there are %d events of %d bytes", j.Len(), size)
	}
}
