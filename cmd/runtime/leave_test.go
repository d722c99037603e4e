package main_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

// anyUID is a stub for which every conversation and attempt is valid.
type anyUID struct{}

func (anyUID) OwnerOf(context.Context, string) (string, error) { return "somebody", nil }

func (anyUID) NameOf(_ context.Context, uid string) (string, error) { return "ns/" + uid, nil }

func (anyUID) CheckAttempt(context.Context, string, int) error { return nil }

// startArchive starts an archive and configures the pod's session to use it.
func startArchive(t *testing.T, p *pod) archivetest.Store {
	t.Helper()
	store := archivetest.Open(t, archivetest.InDirectory(t))
	server := httptest.NewServer(httpapi.NewHandler(store.Store, anyUID{}, func() ([]ed25519.PublicKey, error) {
		return []ed25519.PublicKey{facadeKey.Public().(ed25519.PublicKey)}, nil
	}))
	t.Cleanup(server.Close)
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceArchive, UID: p.doc.UID,
		Expires: time.Now().Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	p.doc.ArchiveURL = server.URL
	p.secrets[session.ArchiveTokenFile] = token
	p.writeDocument(t)
	return store
}

func TestASessionOfADeletedConversationEndsWithoutAnError(t *testing.T) {
	t.Parallel()
	p := newPod(t, session.Document{UID: "u1", FirstMessage: "work", OneShot: true, Agent: agent("true")})
	startArchive(t, p)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the conversation is deleted", http.StatusGone)
	}))
	t.Cleanup(server.Close)
	p.doc.ArchiveURL = server.URL
	p.writeDocument(t)
	p.start(t)
	if code, end := p.wait(t); code != 0 {
		t.Errorf("it ended with status %d: %+v", code, end)
	}
	if log := p.output(); strings.Contains(log, "level=ERROR") || !strings.Contains(log, "the conversation is deleted") {
		t.Errorf("the log is\n%s", log)
	}
}

func TestTheJournalIsArchivedBeforeTheDiffIsComputed(t *testing.T) {
	t.Parallel()
	// The diff of the files f1 to f30 takes about a minute, because all of their many short lines
	// change.
	address := repository(t)
	cmd := exec.Command("sh", "-c", `for i in $(seq 30); do seq $i 7 99999 | sed s/$/$i/ > f$i; done
		git add . && git -c user.name=T -c user.email=t@example.com commit -q -m many`)
	cmd.Dir = strings.TrimPrefix(address, "file://")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	p := newPod(t, session.Document{
		UID: "u1", FirstMessage: "work", OneShot: true, Repository: &session.Repository{Name: address, Branch: "main"},
		Agent: agent(`for i in $(seq 30); do seq $i 5 99999 | sed s/$/x$i/ > f$i; done`),
	})
	store := startArchive(t, p)
	p.start(t)
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	eventually(t, "the archive has the end of the journal", func() bool {
		var last session.State
		_ = store.Events(t.Context(), "u1", 0, 0, func(_ int, event json.RawMessage) bool {
			e, err := session.ParseEvent(event)
			if err != nil {
				t.Fatal(err)
			}
			last = e.StateOf()
			return true
		})
		return last == session.StateFinished || last == session.StateAwaiting
	})
	if _, err := store.Ending(t.Context(), "u1"); err == nil {
		t.Error("the diff was computed at once, so this test proves nothing")
	}
}

// The journal has already been handed over, so a new message would be lost with the pod.
func TestAStoppingSessionRefusesMessages(t *testing.T) {
	t.Parallel()
	p, _ := scripted(t, func(d *session.Document) {
		d.UID = "u1"
		d.ToolServers.SHTTP = []session.RemoteServer{silentServer(t)}
	}, says("Done."))
	startArchive(t, p)
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(slow.Close)
	p.doc.ArchiveURL = slow.URL
	p.writeDocument(t)
	p.start(t)
	p.waitReady(t)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceSession, UID: p.doc.UID,
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	const message = `{"action": "message", "args": {"content": "more"}}`
	eventually(t, "a message is refused", func() bool {
		return p.post(t, message, session.TokenHeader, token) == http.StatusConflict
	})
}
