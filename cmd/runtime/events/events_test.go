package events_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/events"
	"github.com/parley-dev/parley/cmd/runtime/journal"
)

type taker struct {
	journal *journal.Journal
	refuse  error
	states  []session.State
	last    driver.StateRequest
	revoked []int

	mu        sync.Mutex
	preview   session.Preview
	previewed chan struct{}
}

func (d *taker) Preview() (session.Preview, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.preview, d.previewed
}

func (d *taker) show(preview session.Preview) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.preview = preview
	close(d.previewed)
	d.previewed = make(chan struct{})
}

func (d *taker) Message(text string, images []string, _ string) error {
	if d.refuse != nil {
		return d.refuse
	}
	_, err := d.journal.Append(session.UserMessage(text, images))
	return err
}

func (d *taker) ChangeState(request driver.StateRequest, _ string) error {
	d.states = append(d.states, request.State)
	d.last = request
	return d.refuse
}

func (d *taker) Revoke(approval int, _ string) error {
	d.revoked = append(d.revoked, approval)
	return d.refuse
}

func serve(t *testing.T) (*taker, *httptest.Server, chan struct{}) {
	t.Helper()
	j, err := journal.Open(filepath.Join(t.TempDir(), "events.jsonl"), func(text string) string { return text })
	if err != nil {
		t.Fatal(err)
	}
	takes, stopping := &taker{journal: j, previewed: make(chan struct{})}, make(chan struct{})
	s := &events.Server{Journal: j, Driver: takes, Stopping: stopping}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /events", s.List)
	mux.HandleFunc("GET /events/stream", s.Stream)
	mux.HandleFunc("POST /events", s.Add)
	server := httptest.NewServer(mux)
	t.Cleanup(func() { server.Close(); _ = j.Close() })
	return takes, server, stopping
}

func get(t *testing.T, url string) (code int, ids []int, more bool) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var page struct {
		Events []session.Event `json:"events"`
		More   bool            `json:"has_more"`
	}
	if err := json.NewDecoder(response.Body).Decode(&page); err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Events {
		ids = append(ids, e.ID)
	}
	return response.StatusCode, ids, page.More
}

func TestEventsAreReadByRange(t *testing.T) {
	takes, server, _ := serve(t)
	for n := range 30 {
		if err := takes.Message(fmt.Sprint(n), nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]string{
		"":                                  "200 0-19 of 20, more true",
		"?limit=100":                        "200 0-29 of 30, more false",
		"?start_id=5&limit=3":               "200 5-7 of 3, more true",
		"?start_id=5&end_id=6":              "200 5-6 of 2, more false",
		"?reverse=true&limit=2":             "200 29-28 of 2, more true",
		"?reverse=true&limit=50":            "200 29-0 of 30, more false",
		"?reverse=true&end_id=3&start_id=2": "200 3-2 of 2, more false",
		"?start_id=99":                      "200 none, more false",
		"?start_id=9223372036854775807":     "200 none, more false",
		"?end_id=9223372036854775807":       "200 0-19 of 20, more true",
		"?limit=101":                        "400 none, more false",
		"?limit=0":                          "400 none, more false",
		"?start_id=x":                       "422 none, more false",
		"?end_id=-1":                        "422 none, more false",
	} {
		code, ids, more := get(t, server.URL+"/events"+query)
		got := fmt.Sprintf("%d none, more %v", code, more)
		if len(ids) > 0 {
			got = fmt.Sprintf("%d %d-%d of %d, more %v", code, ids[0], ids[len(ids)-1], len(ids), more)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

func follow(t *testing.T, url, last string, n int) (ids []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); len(ids) < n && lines.Scan(); {
		if id, found := strings.CutPrefix(lines.Text(), "id: "); found {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestAPageContainsFewerEventsIfTheyAreLarge(t *testing.T) {
	takes, server, _ := serve(t)
	for range 10 {
		if err := takes.Message(strings.Repeat("x", 5<<19), nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	var all []int
	for more := true; more; {
		code, ids, left := get(t, fmt.Sprintf("%s/events?limit=100&start_id=%d", server.URL, len(all)))
		if code != http.StatusOK || len(ids) != 3 && left || len(ids) == 0 {
			t.Fatalf("answered %d with %v", code, ids)
		}
		all, more = append(all, ids...), left
	}
	if fmt.Sprint(all) != "[0 1 2 3 4 5 6 7 8 9]" {
		t.Errorf("read %v", all)
	}
	if _, ids, more := get(t, server.URL+"/events?limit=100&reverse=true"); fmt.Sprint(ids) != "[9 8 7]" || !more {
		t.Errorf("backwards %v, more %v", ids, more)
	}
}

func TestAStreamResumesAfterTheLastEventID(t *testing.T) {
	takes, server, _ := serve(t)
	for range 3 {
		if err := takes.Message("x", nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for range 3 {
			_ = takes.Message("y", nil, "")
		}
	}()
	if got := strings.Join(follow(t, server.URL+"/events/stream", "", 6), " "); got != "0 1 2 3 4 5" {
		t.Errorf("got %s", got)
	}
	if got := strings.Join(follow(t, server.URL+"/events/stream", "3", 2), " "); got != "4 5" {
		t.Errorf("after 3: %s", got)
	}
	if got := strings.Join(follow(t, server.URL+"/events/stream?after=-1", "", 1), " "); got != "0" {
		t.Errorf("after -1: %s", got)
	}
}

func TestAClientAheadOfTheJournalGetsOnlyNewEvents(t *testing.T) {
	takes, server, _ := serve(t)
	if err := takes.Message("x", nil, ""); err != nil {
		t.Fatal(err)
	}
	response, err := http.Get(server.URL + "/events/stream?after=9223372036854775807")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Scan() // the stream has started
	if err := takes.Message("y", nil, ""); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		if id, found := strings.CutPrefix(lines.Text(), "id: "); found {
			if id != "1" {
				t.Errorf("got %s", id)
			}
			return
		}
	}
}

func TestPreviewsAreStreamedOnlyToClientsThatRequestThem(t *testing.T) {
	takes, server, _ := serve(t)
	plain, err := http.Get(server.URL + "/events/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Body.Close()
	response, err := http.Get(server.URL + "/events/stream?previews=true")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	reads := func(want ...string) {
		t.Helper()
		for _, line := range want {
			for lines.Scan() {
				if lines.Text() != "" && !strings.HasPrefix(lines.Text(), ":") {
					break
				}
			}
			if !strings.HasPrefix(lines.Text(), line) {
				t.Fatalf("got %q, want %q", lines.Text(), line)
			}
		}
	}
	takes.show(session.Preview{Message: "a <b", Outputs: []session.CommandOutput{{Cause: 3, Content: "x\n"}}})
	reads("event: preview", `data: {"message":"a \u003cb","outputs":[{"cause":3,"content":"x\n"}]}`)
	if err := takes.Message("x", nil, ""); err != nil {
		t.Fatal(err)
	}
	reads("id: 0", "data: {")
	takes.show(takes.preview) // unchanged
	takes.show(session.Preview{})
	reads("event: preview", "data: {}")
	if err := takes.Message("y", nil, ""); err != nil {
		t.Fatal(err)
	}
	reads("id: 1", "data: {")
	lines = bufio.NewScanner(plain.Body)
	reads("id: 0", "data: {", "id: 1", "data: {")
}

func TestStreamsEndWithTheSession(t *testing.T) {
	_, server, stopping := serve(t)
	response, err := http.Get(server.URL + "/events/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	close(stopping)
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Error(err)
	}
}

// pixel is a PNG in base64 without padding.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg"

func withImages(urls ...string) string {
	return `{"action":"message","args":{"content":"x","image_urls":["` + strings.Join(urls, `","`) + `"]}}`
}

func TestPostedEventsAreValidated(t *testing.T) {
	takes, server, _ := serve(t)
	post := func(body string) (int, string) {
		t.Helper()
		response, err := http.Post(server.URL+"/events", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	for body, want := range map[string]int{
		`{"action":"message","args":{"content":"hello","image_urls":[]}}`:                                 200,
		`{"action":"message","args":{"content":"","image_urls":["data:image/png;base64,` + pixel + `"]}}`: 200,
		`{"action":"message","args":{"content":"x","image_urls":["https://example.com/a.png"]}}`:          200,
		`{"action":"change_agent_state","args":{"agent_state":"paused"}}`:                                 200,
		`{"action":"revoke_approval","args":{"approval":3}}`:                                              200,
		`{"action":"message","args":{"content":""}}`:                                                      422,
		`{"action":"message"}`: 422,
		`{"action":"change_agent_state","args":{"agent_state":"finished"}}`: 422,
		`{"action":"run","args":{"command":"ls"}}`:                          422,
		`[]`:  422,
		`{`:   422,
		"nul": 422,
		`{"action":"message","args":{"content":"` + strings.Repeat("x", 9<<20) + `"}}`: 413,
	} {
		if code, text := post(body); code != want {
			t.Errorf("%.80s: got %d %s, want %d", body, code, text, want)
		}
	}
	for body, want := range map[string]string{
		`{"action":"message","args":{"content":5}}`:      "args.content: wrong type",
		`{"action":"message","args":{"image_urls":"x"}}`: "args.image_urls: wrong type",
		`{"action":[]}`:                          "action: wrong type",
		`{"action":"revoke_approval","args":{}}`: "args.approval: must be the ID",
		`{"action":"change_agent_state","args":{"agent_state":"user_confirmed","question":"3"}}`: "args.question: wrong type",
		`{"action":"change_agent_state","args":{"agent_state":"paused","question":3}}`:           "args.question: is allowed",
		`{"action":"change_agent_state","args":{"agent_state":"user_confirmed","reason":"x"}}`:   "args.reason: is allowed",
		`{"action":"change_agent_state","args":{"agent_state":"user_rejected","remember":true}}`: "args.remember: is allowed",
		`{"action":"change_agent_state","args":{"agent_state":"user_rejected","reason":"` + strings.Repeat("é", 2001) +
			`"}}`: "args.reason: at most 2000",
		`{"action":"message","args":{"content":"x","image_urls":["` + strings.Repeat(`a","`, 16) +
			`b"]}}`: "args.image_urls: at most 16 images are allowed",
		withImages("https://example.com/a.png", "data:image/png,x"):     "args.image_urls[1]: it is not a PNG",
		withImages("data:image/png;base64,?"):                           "args.image_urls[0]: its base64 data is",
		withImages("data:image/png," + strings.Repeat("x", 5<<20+1)):    "args.image_urls[0]: it is larger than 5 MiB",
		withImages("file:///run/parley/images/0.png"):                   "args.image_urls[0]: its URL must be an http",
		withImages("https://u:p@example.com/a.png"):                     "args.image_urls[0]: its URL must not contain",
		withImages("https://example.com/" + strings.Repeat("a", 16384)): "args.image_urls[0]: its URL has more than",
	} {
		if code, text := post(body); code != http.StatusUnprocessableEntity || !strings.Contains(text, want) {
			t.Errorf("%.200s: got %d %s, want %s", body, code, text, want)
		}
	}
	if code, text := post(`{"action":"change_agent_state","args":{"agent_state":"user_rejected","question":17,` +
		`"reason":"no"}}`); code != http.StatusOK || *takes.last.Question != 17 || takes.last.Reason != "no" {
		t.Errorf("an answer with a question gets %d %s and requests %+v", code, text, takes.last)
	}
	request, err := http.NewRequest(http.MethodPost, server.URL+"/events",
		strings.NewReader(`{"action":"message","args":{"content":"x"}}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.IdempotencyHeader, strings.Repeat("k", 256))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a key that is too long gets %d", response.StatusCode)
	}
	before := takes.journal.Len()
	for _, refusal := range []error{driver.ErrNoAgent, driver.ErrOver, driver.ErrOneShot, driver.ErrNothingAsked,
		driver.ErrOtherQuestion, driver.ErrAnswered, driver.ErrNotRepeatable, driver.ErrNoSuchApproval} {
		takes.refuse = refusal
		if code, text := post(`{"action":"message","args":{"content":"hello"}}`); code != http.StatusConflict ||
			!strings.Contains(text, refusal.Error()) {
			t.Errorf("%v: got %d %s", refusal, code, text)
		}
	}
	takes.refuse = nil
	// The message has 1.5 MiB, but its event has 18 MiB: the event contains the text twice, and
	// JSON encodes each "<" as six bytes.
	if code, text := post(`{"action":"message","args":{"content":"` + strings.Repeat("<", 3<<19) +
		`"}}`); code != http.StatusRequestEntityTooLarge || !strings.Contains(text, "at most 16 MiB") {
		t.Errorf("a message that grows too large gets %d %s", code, text)
	}
	if takes.journal.Len() != before {
		t.Error("a refused event is stored")
	}
}
