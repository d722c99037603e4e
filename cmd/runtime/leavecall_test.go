package main_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func tokenFor(t *testing.T, audience string) string {
	t.Helper()
	token, err := session.SignToken(facadeKey, session.Claims{Audience: audience, UID: "u1",
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (p *pod) askToLeave(t *testing.T, method, token string) (code int, answer session.Leave) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.address+session.LeavePath, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return 0, answer
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			t.Error(err)
		}
	}
	return response.StatusCode, answer
}

func (p *pod) awaitsUser(t *testing.T) {
	t.Helper()
	eventually(t, "the turn ends", func() bool {
		lines := p.eventLines(t)
		return len(lines) > 2 && strings.Contains(lines[len(lines)-1], string(session.StateAwaiting))
	})
}

func TestAnIdleSessionGivesUpItsSlotForAnotherSession(t *testing.T) {
	t.Parallel()
	p, _ := scripted(t, func(d *session.Document) { d.IdleTimeout = metav1.Duration{Duration: time.Hour} },
		says("Done."))
	archived := startArchive(t, p)
	p.start(t)
	p.waitReady(t)
	p.awaitsUser(t)
	stream, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.address+session.StreamPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	stream.Header.Set(session.TokenHeader, tokenFor(t, session.AudienceSession))
	open, err := http.DefaultClient.Do(stream) // an open stream does not count as activity
	if err != nil || open.StatusCode != http.StatusOK {
		t.Fatalf("the stream is not served: %v", err)
	}
	defer open.Body.Close()
	token := tokenFor(t, session.AudienceLeave)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if code, _ := p.askToLeave(t, method, tokenFor(t, session.AudienceSession)); code != http.StatusUnauthorized {
			t.Errorf("%s with the facade's token is answered with %d", method, code)
		}
	}
	eventually(t, "the session is idle", func() bool {
		code, answer := p.askToLeave(t, http.MethodGet, token)
		return code == http.StatusOK && answer.Idle && answer.IdleSeconds > 0
	})
	if code, answer := p.askToLeave(t, http.MethodPost, token); code != http.StatusOK || !answer.Idle {
		t.Errorf("the answer is %d %+v", code, answer)
	}
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonIdle ||
		got.Message != "Another session of this user was waiting for a slot" {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
	if _, err := archived.Ending(t.Context(), "u1"); err != nil {
		t.Errorf("the session did not hand over: %v", err)
	}
}

func (p *pod) staysWhenAsked(t *testing.T) {
	t.Helper()
	eventually(t, "the session is idle", func() bool { return p.status(t).IdleSeconds > 0 })
	token := tokenFor(t, session.AudienceLeave)
	for method, want := range map[string]int{http.MethodGet: http.StatusOK, http.MethodPost: http.StatusConflict} {
		if code, answer := p.askToLeave(t, method, token); code != want || answer != (session.Leave{}) {
			t.Fatalf("%s is answered with %d %+v", method, code, answer)
		}
	}
}

// The files of the session are on scratch space and cannot be archived. The end of the session
// would delete the files, so the session refuses to leave.
func TestASessionThatCannotArchiveItsFilesKeepsItsSlot(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*scratchPod){
		"no archive":      func(p *scratchPod) { p.doc.ArchiveURL = "" },
		"no snapshot key": func(p *scratchPod) { delete(p.secrets, session.SnapshotKeyFile) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on, _ := scripted(t, func(d *session.Document) { d.IdleTimeout = metav1.Duration{Duration: time.Hour} },
				calls(bash("echo precious > work.txt")), says("Done."))
			p := onScratch(t, on)
			change(p)
			p.writeDocument(t)
			p.begin(t)
			p.waitReady(t)
			p.awaitsUser(t)
			p.staysWhenAsked(t)
		})
	}
}

func TestASessionKeepsItsSlotWhileTheArchiveIsUnavailable(t *testing.T) {
	t.Parallel()
	on, _ := scripted(t, func(d *session.Document) { d.IdleTimeout = metav1.Duration{Duration: time.Hour} },
		calls(bash("echo precious > work.txt")), says("Done."))
	p := onScratch(t, on)
	p.away.Store(true)
	p.begin(t)
	p.waitReady(t)
	p.awaitsUser(t)
	p.staysWhenAsked(t)
	p.away.Store(false)
	eventually(t, "the session leaves", func() bool {
		code, _ := p.askToLeave(t, http.MethodPost, tokenFor(t, session.AudienceLeave))
		return code == http.StatusOK
	})
	p.end(t)
	p.begin(t)
	p.waitReady(t)
	if got := p.file("work.txt"); got != "precious\n" {
		t.Errorf("the file has the content %q", got)
	}
}

func TestASessionKeepsItsSlotDuringATurn(t *testing.T) {
	t.Parallel()
	confirm := true
	p, _ := scripted(t, func(d *session.Document) { d.Settings.ConfirmationMode = &confirm },
		calls(bash("true")), says("Done."))
	p.start(t)
	token := tokenFor(t, session.AudienceLeave)
	eventually(t, "the agent asks", func() bool {
		lines := p.eventLines(t)
		return len(lines) > 0 && strings.Contains(lines[len(lines)-1], string(session.StateConfirmation))
	})
	for method, want := range map[string]int{http.MethodGet: http.StatusOK, http.MethodPost: http.StatusConflict} {
		if code, answer := p.askToLeave(t, method, token); code != want || answer != (session.Leave{}) {
			t.Errorf("%s is answered with %d %+v", method, code, answer)
		}
	}
	p.answer(t, session.StateConfirmed)
	p.awaitsUser(t)
	eventually(t, "the session leaves", func() bool {
		code, _ := p.askToLeave(t, http.MethodPost, token)
		return code == http.StatusOK
	})
}

// A message may arrive at the moment when the session is asked to leave. Either the session accepts
// the message and stays, or it refuses the message and ends.
func TestNoMessageIsLostWhenASessionGivesUpItsSlot(t *testing.T) {
	t.Parallel()
	for range 10 {
		p, _ := scripted(t, func(d *session.Document) { d.FirstMessage = "" }, says("Done."))
		p.start(t)
		p.waitReady(t)
		var left, sent int
		var racing sync.WaitGroup
		leave, message := tokenFor(t, session.AudienceLeave), tokenFor(t, session.AudienceSession)
		racing.Go(func() { left, _ = p.askToLeave(t, http.MethodPost, leave) })
		racing.Go(func() {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+session.EventsPath,
				strings.NewReader(`{"action": "message", "args": {"content": "work"}}`))
			if err != nil {
				t.Error(err)
				return
			}
			request.Header.Set(session.TokenHeader, message)
			if response, err := http.DefaultClient.Do(request); err == nil {
				sent = response.StatusCode
				_ = response.Body.Close()
			}
		})
		racing.Wait()
		switch {
		case left == http.StatusOK && sent != http.StatusOK: // sent is 0 if the process had already exited
			p.wait(t)
			if journal := p.file(".parley/events.jsonl"); strings.Contains(journal, `"work"`) {
				t.Errorf("a message was recorded after the session left:\n%s", journal)
			}
		case left == http.StatusConflict && sent == http.StatusOK:
			p.awaitsUser(t)
		default:
			t.Fatalf("the answers are %d to the leave call and %d to the message", left, sent)
		}
	}
}
