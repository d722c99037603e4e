package main_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

// scratchPod is a session on scratch space with an archive that can be unavailable.
type scratchPod struct {
	*pod
	store archivetest.Store
	dir   string // of the store
	away  atomic.Bool
	// intercept handles a request instead of the archive if it returns true.
	intercept atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	attempt   int
}

func newScratchPod(t *testing.T, doc session.Document) *scratchPod {
	t.Helper()
	doc.UID, doc.Scratch = "u1", true
	address := archivetest.InDirectory(t)
	p := &scratchPod{pod: newPod(t, doc), store: archivetest.Open(t, address), dir: archivetest.Dir(address)}
	handler := httpapi.NewHandler(p.store.Store, always{}, func() (ed25519.PublicKey, error) {
		return facadeKey.Public().(ed25519.PublicKey), nil
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
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceArchive, UID: doc.UID,
		Expires: time.Now().Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	key, err := session.SnapshotKey([]byte("the manager's secret"), doc.UID)
	if err != nil {
		t.Fatal(err)
	}
	p.doc.ArchiveURL = server.URL
	p.secrets[session.ArchiveTokenFile] = token
	p.secrets[session.SnapshotKeyFile] = base64.StdEncoding.EncodeToString(key)
	p.writeDocument(t)
	return p
}

// begin starts the next attempt in a new pod, so with an empty workspace.
func (p *scratchPod) begin(t *testing.T) {
	t.Helper()
	p.attempt++
	if err := os.RemoveAll(p.workspace); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(p.workspace, 0o700); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(p.termination)
	p.image = []string{fmt.Sprintf("PARLEY_ATTEMPT=%d", p.attempt)}
	p.start(t)
}

func (p *scratchPod) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.wait(t)
}

// end waits for a session that ends by itself.
func (p *scratchPod) end(t *testing.T) {
	t.Helper()
	if code, end := p.wait(t); code != 0 {
		t.Fatalf("the session ended with status %d: %+v", code, end)
	}
}

// sh runs a command in the clone and returns its output.
func (p *scratchPod) sh(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = filepath.Join(p.workspace, "site")
	cmd.Env = append(os.Environ(), "HOME="+filepath.Join(p.workspace, ".parley", "home"), "GIT_CONFIG_NOSYSTEM=1")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
	return strings.TrimSpace(string(output))
}

// notices returns the notices in the journal of the workspace.
func (p *scratchPod) notices(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.workspace, ".parley", "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		event, err := session.ParseEvent(line)
		if err != nil {
			t.Fatal(err)
		}
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

// gitAuthor lets the scripts of agents commit.
const gitAuthor = "export GIT_AUTHOR_NAME=T GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=T " +
	"GIT_COMMITTER_EMAIL=t@example.com; "

// once makes a script that works in its first run only. A later attempt does not run it anyway.
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
		"git rev-parse HEAD":                 head,
		"git rev-parse --abbrev-ref HEAD":    "topic",
		"git log --format=%s main..topic":    "kept\ntopic",
		"git status --porcelain":             status,
		"git fsck --no-dangling 2>&1 | cat":  "",
		"cat new.txt deep/er/file kept":      "committed\nmore\nuntracked\nchanged",
		"./tool":                             "ran",
		"test -e main || echo gone":          "gone",
		"readlink link escape":               "deep/er\n/proc/self/environ",
		"cat ~/.memory/notes ../beside":      "remembered\nbeside",
		"test -e x.o || echo ignored":        "ignored",
		"stat -c %a tool deep/er/file":       "755\n644",
		"git remote get-url origin | wc -l":  "1",
		"cat ../.parley/base | wc -l":        "1",
		"ls ../.parley | grep -i -c snap.*z": "0",
	} {
		if strings.HasSuffix(command, "0") {
			continue
		}
		if got := p.sh(t, command+" || true"); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	p.wantsNotice(t, "restored")
	p.stop(t)
	if got := p.patch(t); got != patch {
		t.Errorf("the archived diff became\n%s\nfrom\n%s", got, patch)
	}
	p.begin(t) // the snapshot of the second attempt
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
	refuse := func(w http.ResponseWriter, r *http.Request) bool { // only the start is affected
		if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, session.ArchiveClaim) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}
	p.intercept.Store(&refuse)
	p.begin(t)
	eventually(t, "the session gives up waiting for the archive", func() bool {
		code, _ := p.get(t, session.ReadyPath)
		return code == http.StatusOK
	})
	p.wantsNotice(t, "Files of the earlier attempt are lost: ")
	p.intercept.Store(nil)
	p.stop(t)
	if got := p.patch(t); got != patch {
		t.Errorf("the archived diff became %q", got)
	}
	// The snapshot is still that of the first attempt.
	p.begin(t)
	p.waitReady(t)
	if got := p.sh(t, "cat main"); got != "edited" {
		t.Errorf("the file has %q", got)
	}
}

// decode reads JSON.
func decode(t *testing.T, from io.Reader, into any) {
	t.Helper()
	if err := json.NewDecoder(from).Decode(into); err != nil {
		t.Fatal(err)
	}
}
