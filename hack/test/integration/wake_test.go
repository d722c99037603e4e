package integration_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func (p *person) awaitTexts(t *testing.T, id, want string) {
	t.Helper()
	testenv.Await(t, func() error {
		code, answer := p.do(t, "GET", "/api/conversations/"+id+"/trajectory", "")
		var all struct{ Trajectory []session.Event }
		if err := json.Unmarshal([]byte(answer), &all); code != http.StatusOK || err != nil {
			return fmt.Errorf("answered %d %s", code, answer)
		}
		if got := texts(all.Trajectory); got != want {
			return fmt.Errorf("the messages are %s, want %s", got, want)
		}
		return nil
	})
}

func (p *person) converseAndStop(t *testing.T, id string) {
	t.Helper()
	p.converse(t, id, map[string]any{"initial_user_msg": "work"})
	p.awaitAgent(t, id, session.StateAwaiting)
	p.stop(t, id)
}

func TestAMessageWakesAStoppedSession(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."), says("Three."))
	ada.converseAndStop(t, "talk")
	before := ada.conversation(t, "talk").Status.Attempt
	ada.wants(t, 200, "POST", "/api/conversations/talk/message", `{"message": "go on"}`)
	ada.awaitTexts(t, "talk", "user: work; agent: One.; user: go on; agent: Two.")
	if got := ada.conversation(t, "talk"); got.Spec.Suspend || got.Status.Attempt != max(1, before)+1 {
		t.Errorf("the attempt is %d after %d", got.Status.Attempt, before)
	}
	t.Run("an approval does not wake it", func(t *testing.T) {
		ada.stop(t, "talk")
		ada.wants(t, 409, "POST", "/api/conversations/talk/events", `{"action": "change_agent_state", "args": `+
			`{"agent_state": "user_confirmed"}}`)
		ada.wants(t, 409, "POST", "/api/conversations/talk/events", `{"action": "message", "args": {"content": ""}}`)
		if got := ada.conversation(t, "talk"); !got.Spec.Suspend {
			t.Error("the session was started")
		}
	})
	t.Run("a message that is sent as an event wakes it", func(t *testing.T) {
		ada.wants(t, 200, "POST", "/api/conversations/talk/events", `{"action": "message", "args": {"content": "more"}}`)
		ada.awaitTexts(t, "talk", "user: work; agent: One.; user: go on; agent: Two.; user: more; agent: Three.")
	})
}

// The session may stop before, during or after each message. No message is lost or repeated.
func TestAMessageToAStoppingSessionIsHandledOnce(t *testing.T) {
	t.Parallel()
	const rounds = 4
	steps := []string{"One."}
	ada := newPerson(t, nil, says("One."), says("Two."), says("Three."), says("Four."), says("Five."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	want := "user: work; agent: One."
	for i := range rounds {
		ada.wants(t, 200, "POST", "/api/conversations/talk/stop", "")
		key := ada.withKey(t, fmt.Sprintf("key-%d", i))
		testenv.Await(t, func() error {
			code, answer := key.do(t, "POST", "/api/conversations/talk/message", fmt.Sprintf(`{"message": "m%d"}`, i))
			if code != http.StatusOK {
				return fmt.Errorf("answered %d %s", code, answer)
			}
			return nil
		})
		steps = append(steps, []string{"Two.", "Three.", "Four.", "Five."}[i])
		want += fmt.Sprintf("; user: m%d; agent: %s", i, steps[len(steps)-1])
		ada.awaitTexts(t, "talk", want)
	}
}

func TestConcurrentMessagesWakeASessionOnce(t *testing.T) {
	t.Parallel()
	const clients = 5
	ada := newPerson(t, nil, says("One."), says("Two."), says("Two."), says("Two."), says("Two."), says("Two."))
	ada.converseAndStop(t, "talk")
	before := max(1, ada.conversation(t, "talk").Status.Attempt)
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			code, answer := ada.try(t.Context(), "POST", "/api/conversations/talk/message", fmt.Sprintf(`{"message": "m%d"}`, i))
			if code != http.StatusOK {
				t.Errorf("answered %d %s", code, answer)
			}
		})
	}
	group.Wait()
	if got := ada.conversation(t, "talk").Status.Attempt; got != before+1 {
		t.Errorf("the attempt is %d after %d", got, before)
	}
	for i := range clients {
		if got := strings.Count(texts(ada.events(t, "talk")), fmt.Sprintf("user: m%d", i)); got != 1 {
			t.Errorf("message %d was accepted %d times", i, got)
		}
	}
}

func TestASocketThatWakesASessionReceivesItsNewEvents(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."), says("Three."))
	ada.converseAndStop(t, "talk")
	conn, _, err := ada.connect(t, "talk", -1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if frame := read(t, conn); !strings.HasPrefix(frame, `40{"sid":"`) {
		t.Fatalf("the answer to the connection is %s", frame)
	}
	said := func(want string) {
		t.Helper()
		for {
			frame := read(t, conn)
			if !strings.HasPrefix(frame, `42["oh_event",`) {
				continue
			}
			e, err := session.ParseEvent([]byte(strings.TrimSuffix(strings.TrimPrefix(frame, `42["oh_event",`), "]")))
			if err != nil {
				t.Fatalf("%s: %v", frame, err)
			}
			if e.Source == session.FromAgent && e.Action == session.ActionMessage && e.Text() == want {
				return
			}
		}
	}
	said("One.") // from the archive
	write(t, conn, `421["oh_user_action",{"action":"message","args":{"content":"go on","image_urls":[]}}]`)
	said("Two.")
	ada.stop(t, "talk")
	write(t, conn, `42["oh_user_action",{"action":"message","args":{"content":"more","image_urls":[]}}]`)
	said("Three.")
}

func TestAOneShotSessionIsNotWoken(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."))
	ada.wants(t, 200, "POST", "/api/conversations", `{"conversation_id": "once", "initial_user_msg": "work", `+
		`"one_shot": true}`)
	ada.awaitState(t, "once", v1alpha1.StateStopped)
	answer := ada.wants(t, 409, "POST", "/api/conversations/once/message", `{"message": "more"}`)
	if !strings.Contains(answer, "one-shot") {
		t.Errorf("answered %s", answer)
	}
	conn, _, err := ada.connect(t, "once", 1000, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, conn, `42["oh_user_action",{"action":"message","args":{"content":"more","image_urls":[]}}]`)
	for frame := ""; !strings.Contains(frame, `"status_update":true`); {
		if frame = read(t, conn); strings.Contains(frame, `"type":"error"`) && !strings.Contains(frame, "one-shot") {
			t.Errorf("the error is %s", frame)
		}
	}
}

func TestAFacadeWithoutAnArchiveWakesSessions(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."))
	ada.converseAndStop(t, "talk")
	facade, err := startFacade()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(facade.Kill)
	ada.url = facade.URL
	ada.wants(t, 200, "POST", "/api/conversations/talk/message", `{"message": "go on"}`)
	ada.awaitTexts(t, "talk", "user: work; agent: One.; user: go on; agent: Two.")
}

// The facade has no archive, and is killed while a message waits.
func TestAKilledFacadeDeliversAWaitingMessageAtMostOnce(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."))
	ada.converseAndStop(t, "talk")
	facade, err := startFacade()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(facade.Kill)
	there := ada.withKey(t, "the-key")
	there.url = facade.URL
	ended := make(chan int, 1)
	go func() {
		code, _ := there.try(t.Context(), "POST", "/api/conversations/talk/message", `{"message": "go on"}`)
		ended <- code
	}()
	testenv.Await(t, func() error {
		if ada.conversation(t, "talk").Spec.Suspend {
			return fmt.Errorf("the start is not requested")
		}
		return nil
	})
	facade.Kill()
	<-ended
	ada.withKey(t, "the-key").wants(t, 200, "POST", "/api/conversations/talk/message", `{"message": "go on"}`)
	ada.awaitTexts(t, "talk", "user: work; agent: One.; user: go on; agent: Two.")
}
