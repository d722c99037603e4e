package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func repository(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "project")
	command := exec.Command("sh", "-ec", `mkdir project && cd project && git init -q -b main . && echo one > file && `+
		`git add . && git commit -qm one`)
	command.Dir = filepath.Dir(dir)
	command.Env = append(os.Environ(), "HOME="+t.TempDir(), "GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com",
		"GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return "file://" + dir
}

func says(text string, calls ...scriptedmodel.Call) scriptedmodel.Step {
	return scriptedmodel.Step{Text: text, Calls: calls}
}

func texts(events []session.Event) string {
	var all []string
	for _, e := range events {
		if e.Action == session.ActionMessage {
			all = append(all, string(e.Source)+": "+e.Text())
		}
	}
	return strings.Join(all, "; ")
}

func TestAUserCanSendMessagesAndReadEventsAndTheDiff(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil,
		says("I begin.", bash("echo two >> file; echo new > made; printf 'a\\0b' > binary")), says("Done."),
		says("You are welcome."))
	ada.converse(t, "talk", map[string]any{"repository": repository(t), "initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	path := "/api/conversations/talk"
	for range 3 { // the first request and two retries
		if got := ada.withKey(t, "thanks").wants(t, 200, "POST", path+"/message",
			`{"message": "Thank you"}`); got != `{"success":true}` {
			t.Errorf("the answer to a message is %s", got)
		}
	}
	testenv.Await(t, func() error {
		if got := texts(ada.events(t, "talk")); got != "user: work; agent: I begin.; agent: Done.; user: Thank you; agent: "+
			"You are welcome." {
			return fmt.Errorf("the messages are %s", got)
		}
		return nil
	})
	for call, want := range map[string]string{
		"/git/changes": `[{"status":"U","path":"binary"},{"status":"M","path":"file"},{"status":"U",` +
			`"path":"made"}]`,
		"/git/diff?path=file":    `{"modified":"one\ntwo\n","original":"one\n"}`,
		"/list-files":            `["binary","file","made"]`,
		"/select-file?file=made": `{"code":"new\n"}`,
		"/vscode-url":            `{"vscode_url":null}`,
		"/web-hosts":             `{"hosts":{}}`,
		"/microagents":           `{"microagents":[]}`,
		"/config": `{"runtime_id":"` + string(ada.conversation(t, "talk").UID) +
			`","session_id":"talk"}`,
		"/events?limit=1&start_id=9999": `{"events":[],"has_more":false}`,
	} {
		if got := ada.wants(t, 200, "GET", path+call, ""); got != want {
			t.Errorf("%s: got %s, want %s", call, got, want)
		}
	}
	if used := decode[session.Usage](t, ada.wants(t, 200, "GET", path+"/usage", "")); used.Calls != 3 ||
		used.InputTokens == 0 || used.OutputTokens == 0 {
		t.Errorf("the usage is %+v", used)
	}
	for call, want := range map[string]int{
		"/select-file?file=binary": 415, "/select-file?file=nothing": 404, "/select-file?file=../../etc/passwd": 422,
		"/git/diff?path=/etc/passwd": 422,
		"/events?limit=101":          400, "/events?start_id=x": 422, "/list-files?path=.parley": 404,
	} {
		ada.wants(t, want, "GET", path+call, "")
	}
	for body, want := range map[string]int{
		`{"action": "run", "args": {}}`: 422, `{`: 422, `{"action": "change_agent_state", "args": {"agent_state": ` +
			`"user_confirmed"}}`: 409,
	} {
		ada.wants(t, want, "POST", path+"/events", body)
	}
	ada.wants(t, 422, "POST", path+"/message", `{"message": ""}`)
	if got := ada.withKey(t, strings.Repeat("k", 256)).wants(t, 422, "POST", path+"/message",
		`{"message": "x"}`); !strings.Contains(got, "idempotency-key") {
		t.Errorf("the answer to a key that is too long is %s", got)
	}
	if answer := ada.wants(t, 200, "GET", path+"/zip-directory", ""); !strings.HasPrefix(answer, "PK") {
		t.Errorf("the zip begins with %.20q", answer)
	}
	ada.upload(t, "talk")
}

func (p *person) upload(t *testing.T, id string) {
	t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("files", "note.txt")
	if err == nil {
		_, err = part.Write([]byte("hello"))
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = form.Close()
	request, err := p.request(t.Context(), "POST", "/api/conversations/"+id+"/upload-files", body.String())
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", form.FormDataContentType())
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var answer session.Upload
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK ||
		len(answer.Uploaded) != 1 {
		t.Errorf("answered %d %+v, %v", response.StatusCode, answer, err)
	}
	if got := p.wants(t, 200, "GET", "/api/conversations/"+id+"/select-file?file=note.txt",
		""); got != `{"code":"hello"}` {
		t.Errorf("the file is %s", got)
	}
}

// follow reads event IDs from the stream until it has n of them or the stream ends.
func (p *person) follow(ctx context.Context, id string, after, n int) (ids []int, err error) {
	enough := errors.New("enough")
	err = p.stream(ctx, id, after, func(data json.RawMessage) error {
		event, err := session.ParseEvent(data)
		if ids = append(ids, event.ID); len(ids) == n {
			return enough
		}
		return err
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return ids, err
}

// stream calls take() for each event with an ID > after. It returns when the stream ends
// or take returns an error.
func (p *person) stream(ctx context.Context, id string, after int, take func(json.RawMessage) error) error {
	request, err := p.request(ctx, "GET", "/api/conversations/"+id+"/events/stream", "")
	if err != nil {
		return err
	}
	request.Header.Set("Last-Event-ID", strconv.Itoa(after))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil // no response
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		return fmt.Errorf("answered %d %s", response.StatusCode, response.Header.Get("Content-Type"))
	}
	// A last line without a line break is incomplete, so it is not an event.
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil // the stream ends
		}
		if text, found := strings.CutPrefix(line, "data: "); found {
			if err := take(json.RawMessage(strings.TrimSuffix(text, "\n"))); err != nil {
				return err
			}
		}
	}
}

func TestAReconnectedStreamHasEveryEventOnce(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	first, err := ada.follow(t.Context(), "talk", -1, 3)
	if err != nil || fmt.Sprint(first) != "[0 1 2]" {
		t.Fatalf("got %v, %v", first, err)
	}
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	before := len(ada.events(t, "talk"))
	more := make(chan []int, 1)
	go func() {
		ids, _ := ada.follow(t.Context(), "talk", before-1, 2)
		more <- ids
	}()
	ada.wants(t, 200, "POST", "/api/conversations/talk/message", `{"message": "again"}`)
	select {
	case ids := <-more:
		if fmt.Sprint(ids) != fmt.Sprint([]int{before, before + 1}) {
			t.Errorf("after %d came %v", before-1, ids)
		}
	case <-time.After(testTimeout):
		t.Fatal("no further events")
	}
	for _, bad := range []string{"x", "-2"} {
		ada.wants(t, 422, "GET", "/api/conversations/talk/events/stream?after="+bad, "")
	}
}

func TestOnlyConfirmedActionsRun(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, map[string]any{"confirmation_mode": true}, says("May I?", bash("echo yes > confirmed")),
		says("And this?", bash("echo no > rejected")), says("Understood."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	answer := func(state session.State) {
		t.Helper()
		ada.awaitAgent(t, "talk", session.StateConfirmation)
		ada.wants(t, 200, "POST", "/api/conversations/talk/events", `{"action": "change_agent_state", "args": `+
			`{"agent_state": "`+string(state)+`"}}`)
	}
	answer(session.StateConfirmed)
	testenv.Await(t, func() error {
		if code, _ := ada.do(t, "GET", "/api/conversations/talk/select-file?file=confirmed", ""); code != http.StatusOK {
			return fmt.Errorf("answered %d", code)
		}
		return nil
	})
	answer(session.StateRejected)
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	if got := ada.wants(t, 200, "GET", "/api/conversations/talk/list-files", ""); got != `["confirmed"]` {
		t.Errorf("the files are %s", got)
	}
}

// A session that receives a token must not be able to use it for another conversation.
func TestATokenIsRefusedByAnotherConversation(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil)
	ada.converse(t, "one", nil)
	ada.converse(t, "other", nil)
	other := ada.conversation(t, "other")
	// The request goes to the first session, with a token for the second conversation.
	swapped := other.DeepCopy()
	swapped.Status.PodIP = ada.conversation(t, "one").Status.PodIP
	request, err := http.NewRequest("GET", fmt.Sprintf("https://%s:%d%s", swapped.Status.PodIP, session.Port,
		session.FilesPath), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, tokenFor(t, string(other.UID)))
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := insecure.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("answered %d", response.StatusCode)
	}
}

func tokenFor(t *testing.T, uid string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(suite.SigningKeyDir, session.SigningPrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := session.ParseSigningKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	token, err := session.SignTokens(keys, session.Claims{Audience: session.AudienceSession, UID: uid,
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestStreamsEndWhenTheFacadeStops(t *testing.T) {
	t.Parallel()
	facade, err := startFacade("--shutdown-delay=0s")
	if err != nil {
		t.Fatal(err)
	}
	ada := newPerson(t, nil)
	ada.converse(t, "talk", nil)
	ada.url = facade.URL
	ended := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		request, err := ada.request(t.Context(), "GET", "/api/conversations/talk/events/stream", "")
		if err != nil {
			ended <- err
			return
		}
		response, err := http.DefaultClient.Do(request)
		close(begun)
		if err == nil {
			_, err = bufio.NewReader(response.Body).WriteTo(&bytes.Buffer{})
			_ = response.Body.Close()
		}
		ended <- err
	}()
	<-begun
	if err := facade.Stop(); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(testTimeout):
		t.Error("the stream does not end")
	}
}
