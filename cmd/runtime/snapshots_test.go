package main_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/hack/test/archivetest"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// scratchPod is a session on scratch space, with an archive that a test can make unavailable.
type scratchPod struct {
	*pod
	store archivetest.Store
	dir   string // directory of the store
	away  atomic.Bool
	// intercept is called before the archive handles a request. If it returns true, the archive
	// does not handle the request.
	intercept atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	attempt   int
}

func newScratchPod(t *testing.T, doc session.Document) *scratchPod {
	t.Helper()
	return onScratch(t, newPod(t, doc))
}

func onScratch(t *testing.T, on *pod) *scratchPod {
	t.Helper()
	on.doc.UID, on.doc.Scratch = "u1", true
	address := archivetest.InDirectory(t)
	p := &scratchPod{pod: on, store: archivetest.Open(t, address), dir: archivetest.Dir(address)}
	handler := httpapi.NewHandler(p.store.Store, anyUID{}, func() ([]ed25519.PublicKey, error) {
		return []ed25519.PublicKey{facadeKey.Public().(ed25519.PublicKey)}, nil
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if intercept := p.intercept.Load(); intercept != nil && (*intercept)(w, r) {
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceArchive, UID: on.doc.UID,
		Expires: time.Now().Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	key, err := session.SnapshotKey([]byte("the manager's secret"), on.doc.UID)
	if err != nil {
		t.Fatal(err)
	}
	p.doc.ArchiveURL = server.URL
	p.secrets[session.ArchiveTokenFile] = token
	p.secrets[session.SnapshotKeyFile] = base64.StdEncoding.EncodeToString(key)
	p.writeDocument(t)
	return p
}

// begin starts the next attempt with an empty workspace, like a new pod.
func (p *scratchPod) begin(t *testing.T) {
	t.Helper()
	p.empty(t)
	p.resume(t)
}

func (p *scratchPod) empty(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(p.workspace); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(p.workspace, 0o700); err != nil {
		t.Fatal(err)
	}
}

func (p *scratchPod) resume(t *testing.T) {
	t.Helper()
	p.attempt++
	_ = os.Remove(p.termination)
	p.image = []string{fmt.Sprintf("PARLEY_ATTEMPT=%d", p.attempt)}
	if p.attempt > 1 {
		p.image = append(p.image, "PARLEY_RAN_ATTEMPT=1")
	}
	p.start(t)
}

func (p *scratchPod) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait(t)
}

func (p *scratchPod) end(t *testing.T) {
	t.Helper()
	if code, end := p.wait(t); code != 0 {
		t.Fatalf("the session ended with status %d: %+v", code, end)
	}
}

func (p *scratchPod) sh(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = p.workspace
	if p.doc.Repository != nil {
		cmd.Dir = filepath.Join(p.workspace, "site")
	}
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(p.workspace, ".parley", "home"), "GIT_CONFIG_NOSYSTEM=1")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
	return strings.TrimSpace(string(output))
}

func (p *scratchPod) notices(t *testing.T) (all []string) {
	t.Helper()
	for _, event := range p.events(t) {
		if event.Observation == session.ObservedNotice {
			all = append(all, event.Message)
		}
	}
	return all
}

func (p *scratchPod) wantsNotice(t *testing.T, text string) {
	t.Helper()
	if all := strings.Join(p.notices(t), "\n"); !strings.Contains(all, text) {
		t.Errorf("the notices are\n%s\nwant %q", all, text)
	}
}

func (p *scratchPod) patch(t *testing.T) string {
	t.Helper()
	ending, err := p.store.Ending(t.Context(), p.doc.UID)
	if err != nil {
		t.Fatal(err)
	}
	return ending.Patch
}

const gitAuthor = "export GIT_AUTHOR_NAME=T GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=T " +
	"GIT_COMMITTER_EMAIL=t@example.com; "

// worksOnce returns a session whose agent is a script. Later attempts do not run the script again.
func worksOnce(address, script string) session.Document {
	return session.Document{FirstMessage: "work", OneShot: true,
		Repository: &session.Repository{Name: address, Branch: "main"}, Agent: agent("set -e; " + gitAuthor + script)}
}

const manyChanges = `
	echo committed > new.txt; git add new.txt; git commit -q -m local
	git checkout -q -b topic; echo more >> new.txt; git commit -q -a -m topic
	mkdir -p deep/er; echo untracked > deep/er/file; printf '#!/bin/sh\necho ran\n' > tool; chmod 755 tool
	ln -s deep/er link; ln -s /proc/self/environ escape
	echo edited > kept; git add kept; git commit -q -m kept; echo changed > kept
	rm main
	echo '*.o' > .gitignore; echo object > x.o
	mkdir -p ~/.memory; echo remembered > ~/.memory/notes; echo beside > ../beside`

func TestWorkOnScratchSpaceSurvivesAStop(t *testing.T) {
	t.Parallel()
	p := newScratchPod(t, worksOnce(repository(t), manyChanges))
	p.begin(t)
	p.end(t)
	head := p.sh(t, "git rev-parse HEAD")
	status := p.sh(t, "git status --porcelain")
	patch := p.patch(t)
	p.begin(t)
	p.waitReady(t)
	for command, want := range map[string]string{
		"git rev-parse HEAD":                                 head,
		"git rev-parse --abbrev-ref HEAD":                    "topic",
		"git log --format=%s main..topic":                    "kept\ntopic",
		"git status --porcelain":                             status,
		"git fsck --no-dangling":                             "",
		"cat new.txt deep/er/file kept":                      "committed\nmore\nuntracked\nchanged",
		"./tool":                                             "ran",
		"test -e main || echo gone":                          "gone",
		"readlink link escape":                               "deep/er\n/proc/self/environ",
		"cat ~/.memory/notes ../beside":                      "remembered\nbeside",
		"test -e x.o || echo ignored":                        "ignored",
		"stat -c %a tool deep/er/file":                       "755\n644",
		"find ../.parley -name '*.gz' -o -name 'events.d*'":  "",
		"test -e ../.parley/restore && echo pending || true": "",
	} {
		if got := p.sh(t, command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	p.wantsNotice(t, "restored")
	p.stop(t)
	if got := p.patch(t); got != patch {
		t.Errorf("the archived diff became\n%s\nfrom\n%s", got, patch)
	}
	p.begin(t) // restores the second attempt's snapshot
	p.waitReady(t)
	if got := p.sh(t, "git status --porcelain; git rev-parse HEAD"); got != status+"\n"+head {
		t.Errorf("the third attempt has\n%s", got)
	}
}

func TestAnAttemptThatRestoredNothingKeepsTheArchivedDiff(t *testing.T) {
	t.Parallel()
	p := newScratchPod(t, worksOnce(repository(t), "echo edited > main"))
	p.begin(t)
	p.end(t)
	patch := p.patch(t)
	if !strings.Contains(patch, "+edited") {
		t.Fatalf("the diff is %q", patch)
	}
	refuse := func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, session.ArchiveClaim) || strings.HasSuffix(r.URL.Path, session.ArchiveSnapshot) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	p.intercept.Store(&refuse)
	p.begin(t)
	p.waitReady(t)
	p.wantsNotice(t, "Files of the earlier attempt are lost: ")
	p.intercept.Store(nil)
	p.stop(t)
	if got := p.patch(t); got != patch {
		t.Errorf("the archived diff became %q", got)
	}
	// The second attempt did not replace the first attempt's snapshot, so the third attempt
	// restores it.
	p.begin(t)
	p.waitReady(t)
	if got := p.sh(t, "cat main"); got != "edited" {
		t.Errorf("the file has %q", got)
	}
}

// An archive of an earlier version does not describe the snapshot in its answer to a claim.
func TestASnapshotIsRestoredFromAnOlderArchive(t *testing.T) {
	t.Parallel()
	p := newScratchPod(t, worksOnce(repository(t), "echo edited > main"))
	p.begin(t)
	p.end(t)
	older := func(w http.ResponseWriter, r *http.Request) bool {
		claim := strings.HasSuffix(r.URL.Path, session.ArchiveClaim)
		if claim {
			_, _ = io.WriteString(w, `{"success":true}`)
		}
		return claim
	}
	p.intercept.Store(&older)
	p.begin(t)
	p.waitReady(t)
	if got := p.sh(t, "cat main"); got != "edited" {
		t.Errorf("the file has %q", got)
	}
}

// A partly restored workspace must not count as complete.
func TestAnInterruptedRestorationBeginsAgain(t *testing.T) {
	t.Parallel()
	p := newScratchPod(t, worksOnce(repository(t), "echo edited > main"))
	p.begin(t)
	p.end(t)
	p.empty(t)
	for _, dir := range []string{".parley", "site"} {
		if err := os.Mkdir(filepath.Join(p.workspace, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(p.workspace, ".parley", "restore"), "pending")
	write(t, filepath.Join(p.workspace, "site", "half"), "half")
	p.resume(t)
	p.waitReady(t)
	if got := p.sh(t, "ls; cat main"); got != "main\nedited" {
		t.Errorf("the clone has %s", got)
	}
	p.wantsNotice(t, "restored from the archive.")
}

// The process is killed when it has the journal, but not the files.
func TestAKilledRestorationBeginsAgain(t *testing.T) {
	t.Parallel()
	doc := worksOnce(repository(t), "echo done > main")
	doc.FirstMessage = "a message"
	p := newScratchPod(t, doc)
	p.begin(t)
	p.end(t)
	over, requested := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(requested) })
	hold := func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, session.ArchiveSnapshot+"/") {
			once()
			<-over
		}
		return false
	}
	p.intercept.Store(&hold)
	t.Cleanup(func() { close(over) })
	p.begin(t)
	<-requested
	eventually(t, "the journal is downloaded", func() bool {
		text, err := os.ReadFile(filepath.Join(p.workspace, ".parley", "events.jsonl"))
		return err == nil && strings.Contains(string(text), "a message")
	})
	p.killSession(t)
	p.intercept.Store(nil)
	p.start(t)
	p.waitReady(t)
	got := p.sh(t, "cat main; find ../.parley -name restore -o -name 'events.*'")
	if got != "done\n../.parley/events.jsonl" {
		t.Errorf("after the second restoration: %q", got)
	}
	p.wantsNotice(t, "restored from the archive.")
}

func TestAnAlteredSnapshotIsRefusedAndKept(t *testing.T) {
	t.Parallel()
	p := newScratchPod(t, worksOnce(repository(t), "echo edited > main"))
	p.begin(t)
	p.end(t)
	patch := p.patch(t)
	chunks, err := filepath.Glob(filepath.Join(p.dir, "u1", "snapshot", "*", "*"))
	if err != nil || len(chunks) != 1 {
		t.Fatalf("the chunks are %v, %v", chunks, err)
	}
	alter := func() {
		text, err := os.ReadFile(chunks[0])
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)/2] ^= 1
		write(t, chunks[0], string(text))
	}
	alter()
	p.begin(t)
	p.waitReady(t)
	p.wantsNotice(t, "Files of the earlier attempt are lost: the archived snapshot was altered")
	if got := p.sh(t, "cat main"); got != "one" {
		t.Errorf("the file has %q", got)
	}
	p.stop(t)
	if got := p.patch(t); got != patch {
		t.Errorf("the archived diff became %q", got)
	}
	alter()
	p.begin(t)
	p.waitReady(t)
	if got := p.sh(t, "cat main"); got != "edited" {
		t.Errorf("the file has %q", got)
	}
}

func TestANoticeSaysWhyFilesAreLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*scratchPod)
		want   string
	}{
		"no archive": {func(p *scratchPod) { p.doc.ArchiveURL = "" }, "lost: this installation has no archive"},
		"no snapshot": {func(p *scratchPod) { _ = os.RemoveAll(filepath.Join(p.dir, "u1", "snapshot.json")) },
			"lost: the archive has no snapshot of these files"},
		"a new volume": {func(p *scratchPod) {
			p.doc.Scratch = false
			_ = os.RemoveAll(filepath.Join(p.dir, "u1", "snapshot.json"))
		}, "lost: the session's volume is new"},
		"no key": {func(p *scratchPod) { delete(p.secrets, session.SnapshotKeyFile) },
			"lost: the session has no snapshot key"},
		"another key": {func(p *scratchPod) {
			p.secrets[session.SnapshotKeyFile] = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
		}, "lost: the archived snapshot was altered, or encrypted with another key"},
		"another repository": {func(p *scratchPod) {
			p.doc.Repository.Name = repository(t)
			cmd := exec.Command("sh", "-ec", gitAuthor+`git checkout -q --orphan other; git commit -q -m other
				git branch -q -D main feature; git branch -m main`)
			cmd.Dir = strings.TrimPrefix(p.doc.Repository.Name, "file://")
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, output)
			}
		}, "lost: the snapshot of these files could not be restored: the repository no longer has commit"},
		"no earlier work": {func(p *scratchPod) { _ = os.RemoveAll(filepath.Join(p.dir, "u1")) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newScratchPod(t, worksOnce(repository(t), "git commit -q --allow-empty -m own; echo edited > main"))
			p.begin(t)
			p.end(t)
			c.change(p)
			p.writeDocument(t)
			p.begin(t)
			if p.doc.ArchiveURL == "" {
				p.end(t) // the command is not run again
			} else {
				p.waitReady(t)
			}
			if all := p.notices(t); c.want == "" && len(all) > 0 {
				t.Errorf("the notices are %q", all)
			}
			p.wantsNotice(t, c.want)
			if got := p.sh(t, "cat main"); c.want != "" && got != "one" {
				t.Errorf("the file has %q", got)
			}
		})
	}
}

func TestANoticeSaysThatFilesCannotBeSaved(t *testing.T) {
	t.Parallel()
	pod, _ := scripted(t, nil, says("Done."))
	p := onScratch(t, pod)
	refuse := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && strings.Contains(r.URL.Path, session.ArchiveSnapshot+"/") {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return true
		}
		return false
	}
	p.intercept.Store(&refuse)
	p.begin(t)
	p.waitReady(t)
	eventually(t, "the notice appears", func() bool {
		return strings.Contains(strings.Join(p.notices(t), "\n"),
			"could not be saved in the archive: the snapshot is too large")
	})
}

// The pod is lost during a turn. The workspace is restored to its state after the previous turn.
func TestUserAndAgentAreToldThatTheFilesAreOlderThanTheEvents(t *testing.T) {
	t.Parallel()
	waits := filepath.Join(t.TempDir(), "waits")
	pod, model := scripted(t, nil, byTranscript(calls(bash("echo first > first")), says("First is done."),
		calls(bash("echo second > second; touch "+waits+"; sleep 600")), says("Second is done."))...)
	p := onScratch(t, pod)
	p.begin(t)
	p.waitReady(t)
	eventually(t, "the turn is over and saved", func() bool {
		found, err := p.store.Snapshot(t.Context(), "u1")
		lines := p.eventLines(t)
		return err == nil && found.ID != "" && strings.Contains(lines[len(lines)-1], string(session.StateAwaiting))
	})
	p.send(t, `{"action":"message","args":{"content":"more"}}`)
	eventually(t, "the archive has the second command", func() bool {
		var text bytes.Buffer
		err := p.store.Copy(t.Context(), "u1", 0, 0, &text)
		_, waiting := os.Stat(waits)
		return err == nil && waiting == nil && strings.Contains(text.String(), "echo second")
	})
	p.killSession(t)
	asked := len(model.Requests())
	p.begin(t)
	p.waitReady(t)
	p.wantsNotice(t, "Later events exist, and their changes to files are lost.")
	if got := p.sh(t, "ls"); got != "first" {
		t.Errorf("the workspace has %s", got)
	}
	eventually(t, "the agent resumes", func() bool { return len(model.Requests()) > asked })
	request := model.Requests()[asked]
	last := request.Turns[len(request.Turns)-1]
	if !strings.Contains(last.Text, "after the snapshot") || !strings.Contains(last.Text, "echo second") {
		t.Errorf("the agent is told %q", last.Text)
	}
	eventually(t, "the journal has the next action", func() bool {
		_, after, _ := strings.Cut(strings.Join(p.eventLines(t), "\n"), "restored from the archive")
		return strings.Contains(after, "agent run")
	})
}

// archived reports whether the archived journal contains the text, followed by the end of a turn.
func (p *scratchPod) archived(t *testing.T, text string) bool {
	t.Helper()
	var journal bytes.Buffer
	err := p.store.Copy(t.Context(), "u1", 0, 0, &journal)
	_, after, found := strings.Cut(journal.String(), text)
	return err == nil && found && strings.Contains(after, string(session.StateAwaiting))
}

func (p *scratchPod) turnOver(t *testing.T) bool {
	t.Helper()
	lines := p.eventLines(t)
	return len(lines) > 0 && strings.Contains(lines[len(lines)-1], string(session.StateAwaiting))
}

// The archive refuses the snapshot of the second turn, and then the pod is lost. In the second
// attempt, the agent remembers only the first turn, and the next snapshot contains this memory.
// After another restart, the third message must still tell the agent about the second turn.
func TestAnAgentWithOutdatedMemoryRepeatsNoWork(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]func(*testing.T, *scratchPod){
		"a restart of the container": func(t *testing.T, p *scratchPod) {
			t.Helper()
			p.killSession(t)
			p.start(t)
		},
		"another attempt": func(t *testing.T, p *scratchPod) {
			t.Helper()
			p.stop(t)
			p.begin(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ran := filepath.Join(t.TempDir(), "ran")
			pod, model := scripted(t, nil, byTranscript(calls(bash("echo first > first")), says("First is done."),
				calls(bash("echo second >> "+ran)), says("Second is done."), says("Third is done."))...)
			p := onScratch(t, pod)
			p.begin(t)
			p.waitReady(t)
			var first string
			eventually(t, "the first turn is saved", func() bool {
				found, err := p.store.Snapshot(t.Context(), "u1")
				first = found.ID
				return err == nil && found.ID != "" && p.turnOver(t)
			})
			refuse := func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPost && strings.Contains(r.URL.Path, session.ArchiveSnapshot) {
					w.WriteHeader(http.StatusServiceUnavailable)
					return true
				}
				return false
			}
			p.intercept.Store(&refuse)
			p.send(t, `{"action":"message","args":{"content":"more"}}`)
			eventually(t, "the second turn is archived", func() bool { return p.archived(t, "Second is done.") })
			p.killSession(t)
			p.intercept.Store(nil)
			p.begin(t)
			p.waitReady(t)
			p.wantsNotice(t, "Later events exist")
			eventually(t, "the second attempt is saved", func() bool {
				found, err := p.store.Snapshot(t.Context(), "u1")
				return err == nil && found.ID != first
			})
			restart(t, p)
			p.waitReady(t)
			asked, before := len(model.Requests()), len(p.eventLines(t))
			p.send(t, `{"action":"message","args":{"content":"third please"}}`)
			eventually(t, "the third turn is over", func() bool {
				return strings.Contains(strings.Join(p.eventLines(t)[before:], "\n"), "state_changed running") && p.turnOver(t)
			})
			if got := strings.Join(p.eventLines(t)[before:], "\n"); !strings.Contains(got, "agent message") {
				t.Errorf("the events of the third turn are\n%s", got)
			}
			if text, _ := os.ReadFile(ran); string(text) != "second\n" {
				t.Errorf("the second command ran %q", text)
			}
			said := model.Requests()[asked].Said()
			for _, want := range []string{"You ran: echo second", "after the snapshot", "third please"} {
				if !strings.Contains(said, want) {
					t.Errorf("the agent is not told %q: %s", want, said)
				}
			}
		})
	}
}

// The snapshot contains the agent's question whether it may run a command. A later attempt starts
// the command and is lost.
func TestACommandOfALostAttemptIsNotRepeated(t *testing.T) {
	t.Parallel()
	ran := filepath.Join(t.TempDir(), "ran")
	steps := []scriptedmodel.Step{calls(bash("echo ran >> " + ran + "; sleep 60")), says("Done.")}
	for i := range steps {
		steps[i].Times = 100
		steps[i].When = func(r *scriptedmodel.Request) bool { return bytes.Contains(r.Raw, []byte(ran)) == (i == 1) }
	}
	pod, _ := scripted(t, func(d *session.Document) { d.Settings.ConfirmationMode = ptr.To(true) }, steps...)
	p := onScratch(t, pod)
	p.begin(t)
	eventually(t, "the agent asks", func() bool {
		return strings.Contains(strings.Join(p.eventLines(t), "\n"), string(session.StateConfirmation))
	})
	p.stop(t)
	p.begin(t)
	p.waitReady(t)
	p.answer(t, session.StateConfirmed)
	eventually(t, "the command runs", func() bool { text, _ := os.ReadFile(ran); return len(text) > 0 })
	p.killSession(t)
	p.begin(t)
	eventually(t, "the turn is over", func() bool {
		return p.turnOver(t) ||
			strings.Count(strings.Join(p.eventLines(t), "\n"), string(session.StateConfirmation)) > 1
	})
	if text, _ := os.ReadFile(ran); string(text) != "ran\n" || !p.turnOver(t) {
		t.Errorf("the command ran %q; the events are\n%s", text, strings.Join(p.eventLines(t), "\n"))
	}
}

func TestUsageSurvivesAnAttemptThatCannotCloneTheRepository(t *testing.T) {
	t.Parallel()
	address := repository(t)
	pod, _ := scripted(t, func(d *session.Document) {
		d.Repository = &session.Repository{Name: address, Branch: "main"}
	}, says("Done."))
	p := onScratch(t, pod)
	p.begin(t)
	p.waitReady(t)
	eventually(t, "the turn is over", func() bool { return p.turnOver(t) })
	p.stop(t)
	before, err := p.store.Ending(t.Context(), "u1")
	if err != nil || before.Calls != 1 || before.InputTokens == 0 {
		t.Fatalf("the usage is %+v, %v", before, err)
	}
	dir := strings.TrimPrefix(address, "file://")
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	p.begin(t)
	_, end := p.wait(t)
	if !strings.Contains(end.Message, "no git repository") {
		t.Errorf("it ended with %+v", end)
	}
	if after, err := p.store.Ending(t.Context(), "u1"); err != nil || after.Calls != 1 ||
		after.InputTokens != before.InputTokens || after.OutputTokens != before.OutputTokens || after.Cost != before.Cost {
		t.Errorf("the usage became %+v, %v", after, err)
	}
}

// The volume was deleted after its TTL, so the next attempt gets a new volume. There is no
// snapshot, because a session on a volume has none.
func TestASessionOnANewVolumeArchivesTheChangesOnThatVolume(t *testing.T) {
	t.Parallel()
	p := newScratchPod(t, worksOnce(repository(t), "echo edited > main"))
	p.doc.Scratch = false
	p.writeDocument(t)
	p.begin(t)
	p.end(t)
	first := p.patch(t)
	p.begin(t)
	p.waitReady(t)
	p.wantsNotice(t, "the session's volume is new")
	p.stop(t)
	if got := p.patch(t); got != first { // nothing changed on the new volume
		t.Errorf("the archived diff became %q", got)
	}
	p.resume(t)
	p.waitReady(t)
	p.sh(t, "echo newer > third")
	p.stop(t)
	if got := p.patch(t); !strings.Contains(got, "+newer") || strings.Contains(got, "+edited") {
		t.Errorf("the archived diff is %q", got)
	}
	p.sh(t, "git config extensions.unknown true; git config core.repositoryformatversion 1")
	p.resume(t)
	p.waitReady(t)
	p.stop(t)
	if got := p.patch(t); !strings.Contains(got, "+newer") {
		t.Errorf("a clone that cannot be compared makes the diff %q", got)
	}
}

// The session is stopped during a command, and the next attempt restores the workspace. Parley's
// agent then continues the interrupted turn without a prompt. The runtime can therefore tell the
// agent about the restoration only with the next message.
func TestTheAgentLearnsOfARestorationWithTheNextMessage(t *testing.T) {
	t.Parallel()
	waits := filepath.Join(t.TempDir(), "waits")
	pod, model := scripted(t, nil,
		byTranscript(calls(bash("touch "+waits+"; sleep 600")), says("Done."), says("Again."))...)
	p := onScratch(t, pod)
	p.begin(t)
	p.waitReady(t)
	eventually(t, "the command runs", func() bool { _, err := os.Stat(waits); return err == nil })
	p.stop(t)
	p.begin(t)
	p.waitReady(t)
	p.wantsNotice(t, "restored from the archive")
	eventually(t, "the turn is over", func() bool { return p.turnOver(t) })
	asked := len(model.Requests())
	p.send(t, `{"action":"message","args":{"content":"and more"}}`)
	eventually(t, "the model is asked", func() bool { return len(model.Requests()) > asked })
	if said := model.Requests()[asked].Said(); !strings.Contains(said, "restored from the archive") {
		t.Errorf("the agent is told %s", said)
	}
}

func TestADeletedBranchIsRestored(t *testing.T) {
	t.Parallel()
	address := repository(t)
	doc := worksOnce(address, `echo own > own; git add own; git commit -q -m own; echo edited > feature
		mkdir -p ~/'new
line'; truncate -s 65M ~/'new
line'/large`)
	doc.Repository.Branch = "feature"
	p := newScratchPod(t, doc)
	p.begin(t)
	p.end(t)
	want := p.sh(t, "git rev-parse HEAD; git status --porcelain; cat own feature main")
	merge := exec.Command("sh", "-ec", "git merge -q feature; git branch -q -D feature")
	merge.Dir = strings.TrimPrefix(address, "file://")
	if output, err := merge.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	p.begin(t)
	p.waitReady(t)
	if got := p.sh(t, "git rev-parse HEAD; git status --porcelain; cat own feature main"); got != want {
		t.Errorf("restored is\n%s\nwant\n%s", got, want)
	}
	p.wantsNotice(t, `Not saved, and lost: "~/new\nline (65 MiB)".`)
	p.stop(t)
	// Without branch and snapshot, the session must fail. It must not work on another branch.
	if err := os.RemoveAll(filepath.Join(p.dir, "u1", "snapshot.json")); err != nil {
		t.Fatal(err)
	}
	p.begin(t)
	if _, end := p.wait(t); !strings.Contains(end.Message, `it has no branch "feature"`) {
		t.Errorf("it ended with %+v", end)
	}
}
