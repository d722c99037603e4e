package main_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// everyRecordVariable is an environment variable. If it is set, the test interrupts the turn at
// every record of the journal. Otherwise, it interrupts the turn only at a sample of the records.
const everyRecordVariable = "PARLEY_EVERY_RECORD"

// space describes where a session keeps its files: on scratch space or on a volume, with or without
// an archive. forgets is set if the agent cannot resume a session.
type space struct {
	name                      string
	scratch, archive, forgets bool
}

var spaces = []space{
	{name: "volume", archive: true},
	{name: "volume, forgetful agent", archive: true, forgets: true},
	{name: "scratch with archive", scratch: true, archive: true},
	{name: "scratch with archive, forgetful agent", scratch: true, archive: true, forgets: true},
	{name: "scratch without archive", scratch: true},
}

// way is how the session is interrupted: its processes are killed, or it receives a stop signal.
type way string

const killed, stopped way = "killed", "stopped"

var ways = [][]way{{killed}, {stopped}, {killed, stopped}, {stopped, killed}, {killed, killed}}

// marks has a text for each step of the turn. If this text is in a request, the scripted model
// assumes that the step is done.
var marks = []string{"edit-one.txt", "step-run", "step-commit", "step-push", "edit-two.txt"}

// madeFiles maps each file that the turn creates in the clone to its content.
var madeFiles = map[string]string{"edit-one.txt": "one\n", "ran.txt": "ran\n", "edit-two.txt": "two\n"}

// turnSteps returns the steps of a model. The model edits a file, runs a command, commits, pushes
// and edits another file. Each request to the model contains the marks of the steps that are done,
// and the model does the first step whose mark is missing. Each command also appends its mark to a
// file outside the workspace, so that a test can count the commands.
func turnSteps(outside string, run func(command string) scriptedmodel.Call,
	edit func(path, text string) scriptedmodel.Call) []scriptedmodel.Step {
	marked := func(mark, command string) scriptedmodel.Call {
		return run(fmt.Sprintf("echo %s >> %s; %s", mark, outside, command))
	}
	steps := []scriptedmodel.Step{
		calls(edit(marks[0], madeFiles[marks[0]])),
		calls(marked(marks[1], "echo ran > ran.txt; sleep 0.05")),
		calls(marked(marks[2], "git add . && git commit -q -m work")),
		calls(marked(marks[3], "git push -q origin HEAD:work")),
		calls(edit(marks[4], madeFiles[marks[4]])),
		says("All is done."),
	}
	for i := range steps {
		steps[i].Times = 100
		steps[i].When = func(request *scriptedmodel.Request) bool {
			if len(request.Tools) == 0 {
				return false
			}
			isMissing := func(mark string) bool { return !bytes.Contains(request.Raw, []byte(mark)) }
			next := slices.IndexFunc(marks, isMissing)
			return next == i || next < 0 && i == len(marks)
		}
	}
	return steps
}

func editor(path, text string) scriptedmodel.Call {
	return scriptedmodel.Call{Name: "str_replace_editor", Input: scriptedmodel.Input(map[string]any{"command": "create",
		"path": path, "file_text": text, "security_risk": "LOW"})}
}

// pushHost serves a repository over HTTP. Each push appends a line to the file whose path is
// returned.
func pushHost(t *testing.T) (address, pushes string) {
	t.Helper()
	root := t.TempDir()
	pushes = filepath.Join(root, "pushes")
	git(t, root, `git init -q -b main work && cd work && echo base > text && git add . && git commit -q -m base &&
		cd .. && git clone -q --bare work site.git && git -C site.git config http.receivepack true`)
	hook := filepath.Join(root, "site.git", "hooks", "post-receive")
	if err := os.MkdirAll(filepath.Dir(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\ncat >> "+pushes+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(git(t, root, "git --exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=somebody", "HOME=" + root},
	})
	t.Cleanup(server.Close)
	return server.URL + "/site.git", pushes
}

// interruption is a session whose turn is interrupted at a record of its journal.
type interruption struct {
	*scratchPod // its archive is unused in a space without an archive
	space
	model    *scriptedmodel.Server
	outside  string   // path of a file with a line for each command that ran
	pushes   string   // path of a file with a line for each push to the host
	image    []string // environment variables that all attempts have
	everLost bool     // an attempt began without the files of the previous attempt
	ran      bool     // the operator knows that an attempt ran
	had      []string // files at the last interruption
	begun    []string // marks of actions without a result at the last interruption
	recorded int      // number of events at the last interruption
	asked    int      // number of model requests at the last interruption
}

func newInterruption(t *testing.T, in space) *interruption {
	t.Helper()
	i := &interruption{space: in, outside: filepath.Join(t.TempDir(), "outside")}
	pod, model := scripted(t, func(d *session.Document) {
		i.prepare(t, d)
		d.Agent.Forgets = in.forgets
	}, turnSteps(i.outside, bash, editor)...)
	return i.on(t, pod, model)
}

func (i *interruption) prepare(t *testing.T, d *session.Document) {
	t.Helper()
	d.Repository = &session.Repository{Branch: "main"}
	d.Repository.Name, i.pushes = pushHost(t)
	d.Settings.GitUserName, d.Settings.GitUserEmail = ptr.To("Ada"), ptr.To("ada@example.com")
}

func (i *interruption) on(t *testing.T, pod *pod, model *scriptedmodel.Server) *interruption {
	t.Helper()
	i.image = pod.image
	// The pod gets its own loopback address. Otherwise, another test could take its port between
	// two attempts.
	pod.address = strings.Replace(pod.address, "127.0.0.1", fmt.Sprintf("127.%d.%d.1", 1+rand.N(254), rand.N(256)), 1)
	i.scratchPod, i.model = onScratch(t, pod), model
	i.doc.Scratch = i.scratch
	if !i.archive {
		i.doc.ArchiveURL = ""
	}
	i.writeDocument(t)
	return i
}

func (p *pod) events(t *testing.T) (all []session.Event) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.workspace, ".parley", "events.jsonl"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		event, err := session.ParseEvent(line)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, event)
	}
	return all
}

// settled reports whether no turn is running.
func settled(events []session.Event) bool {
	for _, e := range slices.Backward(events) {
		if state := e.StateOf(); state != "" {
			return state == session.StateAwaiting || state == session.StateError
		}
	}
	return false
}

// nextAttempt starts an attempt with the variables that the operator would set.
func (i *interruption) nextAttempt(t *testing.T, number int) {
	t.Helper()
	i.attempt = number
	_ = os.Remove(i.termination)
	i.pod.image = append(slices.Clone(i.image), fmt.Sprintf("PARLEY_ATTEMPT=%d", number))
	if i.ran {
		i.pod.image = append(i.pod.image, "PARLEY_RAN_ATTEMPT=1")
	}
	i.start(t)
}

// interrupt interrupts the session in each of the given ways, one after the other. It then waits
// for the end of the turn. The first interruption comes when the journal has this number of
// records. Each further interruption comes after three more records.
func (i *interruption) interrupt(t *testing.T, records int, ways ...way) {
	t.Helper()
	i.nextAttempt(t, 1)
	for n, end := range ways {
		i.reach(t, records, n > 0)
		if end == killed {
			i.killSession(t)
		} else {
			i.stop(t)
		}
		i.observe(t, end)
		records = i.recorded + 3
		attempt := i.attempt + 1
		i.everLost = i.everLost || i.scratch && (end == killed || !i.archive)
		switch {
		case i.scratch:
			i.empty(t)
		case end == killed:
			attempt-- // the kubelet restarts the container within the same attempt
		}
		if i.forgets {
			_ = os.RemoveAll(filepath.Join(i.workspace, ".parley", "home", ".parley-agent"))
		}
		i.nextAttempt(t, attempt)
	}
	i.waitReady(t)
	eventually(t, "the next attempt settles", func() bool { return settled(i.events(t)) })
}

// reach waits until the journal has this number of records. If orOver is set, it also returns when
// the turn is over.
func (i *interruption) reach(t *testing.T, records int, orOver bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(300 * time.Microsecond) {
		events := i.events(t)
		if len(events) >= records || orOver && settled(events) && i.ready(t) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("timed out at %d of %d records", len(events), records)
		}
	}
}

// observe stores the state of the work after an attempt has ended.
func (i *interruption) observe(t *testing.T, end way) {
	t.Helper()
	// The last request of a killed agent may still be in flight.
	eventually(t, "the model has no connections", func() bool { return i.model.Connections() == 0 })
	i.asked, i.had, i.begun = len(i.model.Requests()), nil, nil
	for name, text := range madeFiles {
		if i.file(filepath.Join("site", name)) == text {
			i.had = append(i.had, name)
		}
	}
	events := i.events(t)
	i.recorded = len(events)
	open := map[string]string{}
	for _, e := range events {
		switch {
		case e.StateOf() == session.StateRunning:
			i.ran = true
		case e.ToolCall != nil && e.Action != "":
			open[e.ToolCall.ID] = fmt.Sprint(e.Message, e.Args)
		case e.ToolCall != nil && e.Observation != "":
			delete(open, e.ToolCall.ID)
		}
	}
	outside, _ := os.ReadFile(i.outside)
	effects := string(outside) + strings.Join(i.had, "\n")
	for _, action := range open {
		for _, mark := range marks { // an action counts as begun only if it had an effect
			if strings.Contains(action, mark) && strings.Contains(effects, mark) {
				i.begun = append(i.begun, mark)
			}
		}
	}
	i.ran = i.ran || end == killed // a lost pod whose process started counts as an attempt that ran
}

type faults struct {
	tried, doubleRuns, doublePushes, lostEdits, announced, wrongNotices, untold, gaps int
}

// judge compares the session's work after the interruption with its work before the interruption.
func (i *interruption) judge(t *testing.T, end way) (f faults) {
	t.Helper()
	f.tried = 1
	fault := func(count *int, format string, args ...any) {
		*count++
		t.Errorf(format, args...)
	}
	outside, _ := os.ReadFile(i.outside)
	for _, mark := range marks {
		if n := strings.Count(string(outside), mark+"\n"); n > 1 {
			fault(&f.doubleRuns, "%s ran %d times", mark, n)
		}
	}
	if pushes, _ := os.ReadFile(i.pushes); strings.Count(string(pushes), "\n") > 1 {
		fault(&f.doublePushes, "the host has the pushes\n%s", pushes)
	}
	missing := slices.DeleteFunc(slices.Clone(i.had), func(name string) bool {
		return i.file(filepath.Join("site", name)) == madeFiles[name]
	})
	all := i.events(t)
	claimed := ""
	for n, e := range all {
		if e.ID != n {
			fault(&f.gaps, "event %d has the ID %d", n, e.ID)
		}
		if e.Observation == session.ObservedNotice && strings.Contains(e.Message, "lost") {
			claimed += e.Message + "\n"
		}
	}
	survives := !i.scratch || i.archive && end == stopped
	switch {
	case survives && len(missing) > 0:
		fault(&f.lostEdits, "%q are lost", missing)
	case !i.everLost && claimed != "":
		fault(&f.wrongNotices, "nothing is lost, but the notice is %q", claimed)
	case !survives && len(missing) > 0 && claimed == "":
		fault(&f.wrongNotices, "%q are lost without a notice", missing)
	case len(missing) > 0:
		f.announced++
	}
	i.judgeAgent(t, &f, len(missing) > 0)
	if violations := i.model.Violations(); len(violations) > 0 {
		t.Errorf("the model refused: %q", violations)
	}
	return f
}

// judgeAgent checks that the agent is told about lost files and interrupted actions.
func (i *interruption) judgeAgent(t *testing.T, f *faults, lost bool) {
	t.Helper()
	requests := i.model.Requests()[i.asked:]
	if i.scratch && !i.archive && i.ran {
		if len(requests) > 0 {
			f.untold++
			t.Errorf("without its record, the turn was resumed with %q", requests[0].Said())
		}
		return
	}
	if len(requests) == 0 {
		return
	}
	said := string(requests[0].Raw)
	if lost && !strings.Contains(said, "lost") {
		f.untold++
		t.Errorf("the agent is not told that files are lost: %s", requests[0].Said())
	}
	for _, mark := range i.begun {
		if !strings.Contains(said, mark) || !strings.Contains(said, "interrupted") && !strings.Contains(said, "restarted") {
			f.untold++
			t.Errorf("the agent is not told that %s was interrupted: %s", mark, requests[0].Said())
		}
	}
}

// archived stops the session and checks that the archive has the whole journal.
func (i *interruption) archived(t *testing.T) {
	t.Helper()
	i.stop(t)
	if !i.archive {
		return
	}
	journal, err := os.ReadFile(filepath.Join(i.workspace, ".parley", "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var kept bytes.Buffer
	if err := i.store.Copy(t.Context(), i.doc.UID, 0, 0, &kept); err != nil || !bytes.Equal(kept.Bytes(), journal) {
		t.Errorf("the archive has the journal\n%s\n%v, want\n%s", kept.String(), err, journal)
	}
}

// The test repeats a turn. Each time, it interrupts the turn after a different record of the
// journal, by a kill or a stop. On scratch space, the next attempt begins with an empty workspace.
func TestNoCommandRunsTwiceAndEveryLostFileIsReported(t *testing.T) {
	undisturbed := newInterruption(t, spaces[0])
	undisturbed.nextAttempt(t, 1)
	eventually(t, "the turn is over", func() bool { return settled(undisturbed.events(t)) })
	records := len(undisturbed.events(t))
	if outside, _ := os.ReadFile(undisturbed.outside); string(outside) != "step-run\nstep-commit\nstep-push\n" ||
		undisturbed.sh(t, "git status --porcelain; cat *.txt") != "?? edit-two.txt\none\ntwo\nran" {
		t.Fatalf("undisturbed, the commands are %q", outside)
	}
	t.Logf("the turn has %d records:\n%s", records, strings.Join(undisturbed.eventLines(t), "\n"))

	var mu sync.Mutex
	table, rows := map[string]*faults{}, []string{}
	everyRecord := os.Getenv(everyRecordVariable) != ""
	t.Run("interrupted", func(t *testing.T) {
		for _, in := range spaces {
			for _, ends := range ways {
				row := fmt.Sprint(in.name, " ", ends)
				rows, table[row] = append(rows, row), &faults{}
				for n := 1; n <= records; n++ {
					if !everyRecord && !inSample(in, ends, n) {
						continue
					}
					t.Run(fmt.Sprintf("%s/%d", row, n), func(t *testing.T) {
						t.Parallel()
						i := newInterruption(t, in)
						t.Cleanup(func() {
							if t.Failed() {
								t.Logf("interrupted after %d records with %q; the events are\n%s", i.recorded, i.had,
									strings.Join(i.eventLines(t), "\n"))
							}
						})
						i.interrupt(t, n, ends...)
						found := i.judge(t, ends[len(ends)-1])
						i.archived(t)
						mu.Lock()
						defer mu.Unlock()
						table[row].add(found)
					})
				}
			}
		}
	})
	for _, row := range rows {
		if table[row].tried == 0 {
			continue
		}
		t.Logf("%-60s %+v", row, *table[row])
	}
}

// inSample reports whether the sample of interruptions contains this one. The test uses the sample
// if the environment variable everyRecordVariable is not set.
func inSample(in space, ends []way, record int) bool {
	switch {
	case len(ends) > 1:
		return in == spaces[2] && ends[0] != ends[1] && record == 8
	case in == spaces[0] && ends[0] == killed:
		return record%3 == 0
	}
	return record == 8
}

func (f *faults) add(more faults) {
	f.tried += more.tried
	f.doubleRuns += more.doubleRuns
	f.doublePushes += more.doublePushes
	f.lostEdits += more.lostEdits
	f.announced += more.announced
	f.wrongNotices += more.wrongNotices
	f.untold += more.untold
	f.gaps += more.gaps
}

// The session does not send the first message to the agent again, because the agent may have worked
// on it. The user is told that the record of this work is lost, and decides how to continue.
func TestALostJournalIsReportedToUserAndAgent(t *testing.T) {
	t.Parallel()
	i := newInterruption(t, spaces[len(spaces)-1])
	i.interrupt(t, 8, killed)
	for _, want := range []string{"Earlier messages are lost: this installation has no archive.",
		"Files of the earlier attempt are lost: this installation has no archive."} {
		i.wantsNotice(t, want)
	}
	if lines := strings.Join(i.eventLines(t), "\n"); !strings.Contains(lines, "user message  work") ||
		!strings.Contains(lines, "may have worked on this message, and the record of its work is lost") {
		t.Errorf("the events are\n%s", lines)
	}
	i.send(t, `{"action":"message","args":{"content":"Go on."}}`)
	eventually(t, "the agent works", func() bool { return len(i.model.Requests()) > i.asked })
	request := i.model.Requests()[i.asked]
	for _, want := range []string{"User: work", "Files of the earlier attempt are lost", "Go on."} {
		if !request.Contains(want) {
			t.Errorf("the agent is not told %q: %s", want, request.Said())
		}
	}
}

// The agent still has its memory, so it continues the turn without a prompt. The next message tells
// the agent about the restoration.
func TestARestorationDuringATurnIsReportedWithTheNextMessage(t *testing.T) {
	t.Parallel()
	i := newInterruption(t, spaces[2])
	i.interrupt(t, 8, stopped)
	i.send(t, `{"action":"message","args":{"content":"Go on."}}`)
	told := func(request *scriptedmodel.Request) bool {
		return request.Contains("The workspace was restored from the archive") && request.Contains("Go on.")
	}
	eventually(t, "the agent is told", func() bool { return slices.ContainsFunc(i.model.Requests(), told) })
}
