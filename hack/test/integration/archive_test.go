package integration_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func (p *person) stop(t *testing.T, id string) {
	t.Helper()
	p.wants(t, 200, "POST", "/api/conversations/"+id+"/stop", "")
	p.awaitState(t, id, v1alpha1.StateStopped)
}

func TestASessionIsReadableAfterItsPodIsGone(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("I begin.", bash("echo two >> file; printf 'a\\0b' > binary")), says("Done."))
	ada.converse(t, "talk", map[string]any{"repository": repository(t), "initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	live := ada.events(t, "talk")
	ada.stop(t, "talk")
	path := "/api/conversations/talk"
	testenv.Await(t, func() error { // the stopping pod uploads the last events
		if got := ada.events(t, "talk"); len(got) < len(live) {
			return fmt.Errorf("%d of %d events are archived", len(got), len(live))
		}
		return nil
	})
	archived := ada.events(t, "talk")
	for i, e := range live {
		if archived[i].ID != i || archived[i].Message != e.Message || archived[i].Timestamp != e.Timestamp {
			t.Errorf("event %d was %+v and is %+v", i, e, archived[i])
		}
	}
	testenv.Await(t, func() error {
		if code, answer := ada.do(t, "GET", path+"/git/changes", ""); answer != `[{"status":"U","path":"binary"},`+
			`{"status":"M","path":"file"}]` {
			return fmt.Errorf("answered %d %s", code, answer)
		}
		return nil
	})
	if got := ada.wants(t, 200, "GET", path+"/git/diff?path=file", ""); got != `{"modified":"one\ntwo\n",`+
		`"original":"one\n"}` {
		t.Errorf("the diff is %s", got)
	}
	ada.wants(t, 415, "GET", path+"/git/diff?path=binary", "")
	ada.wants(t, 404, "GET", path+"/git/diff?path=nothing", "")
	if ids, err := ada.follow(t.Context(), "talk", 0, 1000); err != nil || len(ids) != len(archived)-1 || ids[0] != 1 {
		t.Errorf("the stream has %v, %v", ids, err)
	}
	for query, want := range map[string]string{
		"?limit=1":                          "1 from 0, more true",
		"?limit=1&reverse=true":             fmt.Sprintf("1 from %d, more true", len(archived)-1),
		"?start_id=1&end_id=2":              "2 from 1, more false",
		"?start_id=1&end_id=2&reverse=true": "2 from 2, more false",
		"?start_id=9999":                    "0 from -1, more false",
	} {
		page := decode[session.EventPage](t, ada.wants(t, 200, "GET", path+"/events"+query, ""))
		first := -1
		if len(page.Events) > 0 {
			e, err := session.ParseEvent(page.Events[0])
			if err != nil {
				t.Fatal(err)
			}
			first = e.ID
		}
		if got := fmt.Sprintf("%d from %d, more %v", len(page.Events), first, page.HasMore); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
	ada.wants(t, 409, "GET", path+"/list-files", "")

	uid := string(ada.conversation(t, "talk").UID)
	ada.wants(t, 200, "DELETE", path, "")
	testenv.Await(t, func() error {
		if _, err := os.Stat(filepath.Join(archiveDir(), uid)); !errors.Is(err, fs.ErrNotExist) {
			return errors.New("the archive still exists")
		}
		return nil
	})
}

// The session restores its journal from the archive, and the agent repeats no work.
func TestASessionWithoutItsWorkspaceRestoresItsJournal(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	before := len(ada.events(t, "talk"))
	ada.stop(t, "talk")
	testenv.Await(t, func() error {
		if got := len(ada.events(t, "talk")); got < before {
			return fmt.Errorf("%d of %d events are archived", got, before)
		}
		return nil
	})
	ada.wants(t, 200, "POST", "/api/conversations/talk/start", "{}")
	ada.awaitState(t, "talk", v1alpha1.StateRunning)
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	if got := texts(ada.events(t, "talk")); got != "user: work; agent: One." {
		t.Errorf("after the restart the messages are %s", got)
	}
	ada.wants(t, 200, "POST", "/api/conversations/talk/message", `{"message": "go on"}`)
	testenv.Await(t, func() error {
		if got := texts(ada.events(t, "talk")); got != "user: work; agent: One.; user: go on; agent: Two." {
			return fmt.Errorf("the messages are %s", got)
		}
		return nil
	})
	for i, e := range ada.events(t, "talk") {
		if e.ID != i {
			t.Errorf("event %d has the id %d", i, e.ID)
		}
	}
	if got := len(ada.model.Requests()); got != 2 {
		t.Errorf("the model got %d requests", got)
	}
}

// One archive process owns the store. Any number of facades read from this process.
func TestFacadesReadFromASeparateArchiveProcess(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("Done."))
	ada.converse(t, "talk", map[string]any{"repository": repository(t), "initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.stop(t, "talk")
	testenv.Await(t, func() error {
		if code, answer := ada.do(t, "GET", "/api/conversations/talk/git/changes", ""); answer != "[]" {
			return fmt.Errorf("answered %d %s", code, answer)
		}
		return nil
	})
	want := ada.lines(t, "talk")

	address := facadeenv.FreeAddress()
	startArchive := func() *facadeenv.Facade {
		archive, err := suite.StartArchive(address, program("archive"), archiveDir())
		if err != nil {
			t.Fatal(err)
		}
		return archive
	}
	archive := startArchive()
	facade, err := startFacade("--archive=http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = facade.Stop() })
	ada.url = facade.URL
	paths := []string{"/events", "/events?reverse=true", "/trajectory", "/git/changes", "/git/patch", "/usage",
		"/events/stream"}
	readable := func() {
		t.Helper()
		for _, path := range paths {
			ada.wants(t, 200, "GET", "/api/conversations/talk"+path, "")
		}
		if got := ada.lines(t, "talk"); !slices.Equal(got, want) {
			t.Errorf("the facade returns %d events, want %d", len(got), len(want))
		}
	}
	readable()
	if code, _ := (&person{url: archive.URL, key: ada.key}).do(t, "GET", "/api/conversations", ""); code != 404 {
		t.Errorf("the archive answered a user's request with %d", code)
	}
	archive.Kill()
	for _, path := range paths {
		if answer := ada.wants(t, 503, "GET", "/api/conversations/talk"+path, ""); !strings.Contains(answer,
			"cannot be read now") {
			t.Errorf("%s: the answer is %s", path, answer)
		}
	}
	ada.wants(t, 200, "GET", "/api/conversations/talk", "")
	archive = startArchive()
	t.Cleanup(func() { _ = archive.Stop() })
	readable()
}
