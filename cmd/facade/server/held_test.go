package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/markdown"
	"github.com/parley-dev/parley/cmd/internal/limits"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// crowd is a cluster of several users. A user's name is also the user's key and the name of a
// finished conversation.
type crowd struct{ stopped }

func (c *crowd) UsersByKeyHash(ctx context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	for _, name := range []string{"ada", "bob", "eve", "jim", "joe"} {
		if auth.CredentialOf(name).KeyHash == hash {
			settings, err := c.Settings(ctx, types.NamespacedName{Name: name})
			return []v1alpha1.UserSettings{*settings}, err
		}
	}
	return nil, nil
}

func (c *crowd) Settings(_ context.Context, key types.NamespacedName) (*v1alpha1.UserSettings, error) {
	settings := c.settings()
	settings.Name, settings.UID = key.Name, types.UID(key.Name)
	return settings, nil
}

func (c *crowd) CachedConversation(ctx context.Context, key types.NamespacedName) (*v1alpha1.Conversation, error) {
	conversation, err := c.stopped.CachedConversation(ctx, key)
	conversation.Name, conversation.Spec.UserSettingsName, conversation.UID = key.Name, key.Name, types.UID(key.Name)
	return conversation, err
}

type stubArchive struct {
	sizes []int
	patch int

	mu sync.Mutex
	// reading is the number of running calls of Ending(), keyed by user. most is the highest number of
	// calls that ran at the same time, for all users together.
	reading map[string]int
	most    int
}

func (l *stubArchive) Events(_ context.Context, _ string, _, from int, visit func(int, json.RawMessage) bool) error {
	for id := from; id < len(l.sizes); id++ {
		event := fmt.Sprintf(`{"id":%d,"message":"%s"}`, id, strings.Repeat("x", l.sizes[id]))
		if !visit(id, json.RawMessage(event)) {
			return nil
		}
	}
	return nil
}

func (l *stubArchive) Position(context.Context, string) (session.ArchivePosition, error) {
	return session.ArchivePosition{Next: len(l.sizes)}, nil
}

func (l *stubArchive) Ending(_ context.Context, uid string) (*session.Ending, error) {
	count := func(by int) (mine int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.reading[uid] += by
		all := 0
		for _, n := range l.reading {
			all += n
		}
		l.most = max(l.most, all)
		return l.reading[uid]
	}
	defer count(-1)
	if count(1) > 1 {
		return nil, fmt.Errorf("%s reads two endings at once", uid)
	}
	<-time.After(20 * time.Millisecond) // lets other reads start
	return &session.Ending{Repository: true, Calls: 1, Patch: strings.Repeat("x", l.patch)}, nil
}

// client returns a client whose connections have no buffer: bytes that it does not read are not
// sent.
func client(t *testing.T, options Options) *http.Client {
	t.Helper()
	listener := &pipes{connections: make(chan net.Conn), closed: make(chan struct{})}
	served := &http.Server{Handler: New(&crowd{}, options, prometheus.NewRegistry()), ReadHeaderTimeout: time.Minute}
	go func() { _ = served.Serve(listener) }()
	t.Cleanup(func() { _ = served.Close() })
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn,
		error) {
		here, there := net.Pipe()
		listener.connections <- there
		return here, nil
	}}
	return &http.Client{Transport: transport}
}

// answered is a response whose body is not read yet.
type answered struct {
	code   int
	header http.Header
	body   io.Reader
}

func ask(t *testing.T, client *http.Client, user, path string) answered {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://facade/api/conversations/"+user+path,
		http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(rest.KeyHeader, user)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return answered{response.StatusCode, response.Header, response.Body}
}

func TestUnreadResponsesDoNotDelayOtherUsers(t *testing.T) {
	t.Parallel()
	for path, archive := range map[string]*stubArchive{
		"/events":        {sizes: []int{16 << 20}},
		"/events?limit=": {sizes: []int{1 << 20, 1 << 20, 1 << 20, 1 << 20}},
		"/trajectory":    {sizes: []int{16 << 20}},
		"/events/stream": {sizes: []int{16 << 20, 10}},
		"/git/patch":     {patch: 16 << 20, reading: map[string]int{}},
	} {
		options := DefaultOptions()
		options.Archive = archive
		client := client(t, options)
		for i := 0; ; i++ {
			adas := ask(t, client, "ada", path)
			if adas.code == http.StatusOK && i < 10 {
				continue
			}
			if adas.code != http.StatusTooManyRequests || adas.header.Get("Retry-After") == "" || i == 0 {
				t.Errorf("%s: after %d answers ada gets %d, %v", path, i, adas.code, adas.header)
			}
			break
		}
		bobs := ask(t, client, "bob", path)
		if text, err := io.ReadAll(bobs.body); bobs.code != http.StatusOK || err != nil || len(text) < 3<<20 {
			t.Errorf("%s: bob gets %d, %d bytes, %v", path, bobs.code, len(text), err)
		}
	}
}

func TestResponsesInMemoryAreBounded(t *testing.T) {
	t.Parallel()
	options := DefaultOptions()
	options.Archive = &stubArchive{sizes: []int{16 << 20, 1 << 20}}
	client := client(t, options)
	codes := map[int]int{}
	var read io.Reader
	for _, user := range []string{"ada", "bob", "eve", "jim"} {
		got := ask(t, client, user, "/events?limit=1")
		if codes[got.code]++; got.code == http.StatusOK {
			read = got.body
		} else if got.header.Get("Retry-After") == "" {
			t.Errorf("the answer to %s has no Retry-After", user)
		}
	}
	if codes[http.StatusOK] != 3 || codes[http.StatusServiceUnavailable] != 1 {
		t.Fatalf("answered %v", codes)
	}
	if _, err := io.Copy(io.Discard, read); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, func() error { // the memory is released shortly after the read
		if code := ask(t, client, "joe", "/events?limit=1").code; code != http.StatusOK {
			return fmt.Errorf("an answer that was read is still held: joe gets %d", code)
		}
		return nil
	})
}

// Four users request as many responses as they can and do not read them. The memory for responses
// still has room for a page of another user.
func TestFourSlowReadersCannotExhaustTheResponseMemory(t *testing.T) {
	t.Parallel()
	const m = 1 << 20
	archive := &stubArchive{sizes: []int{16 * m, 8 * m, 4 * m, 2 * m, m, m / 2, 4*m - 1000}}
	options := DefaultOptions()
	options.Archive = archive
	client := client(t, options)
	for id := range archive.sizes { // the largest responses first, then smaller ones that still fit
		for _, user := range []string{"ada", "bob", "eve", "jim"} {
			for range 3 {
				ask(t, client, user, fmt.Sprintf("/events?limit=1&start_id=%d", id))
			}
		}
	}
	got := ask(t, client, "joe", fmt.Sprintf("/events?limit=1&start_id=%d", len(archive.sizes)-1))
	if text, err := io.ReadAll(got.body); got.code != http.StatusOK || err != nil || len(text) < 4*m-1000 {
		t.Errorf("joe gets %d, %d bytes, %v", got.code, len(text), err)
	}
}

// stalled is a client that reads small pieces immediately. It reads large pieces only after the
// channel goOn is closed.
type stalled struct {
	*httptest.ResponseRecorder
	goOn <-chan struct{}
	read *atomic.Int64
	// stalled counts the large pieces that clients have begun to read.
	stalled *atomic.Int64
}

func (s stalled) Write(text []byte) (int, error) {
	if len(text) > 1<<20 {
		s.stalled.Add(1)
		<-s.goOn
		runtime.KeepAlive(text)
	}
	s.read.Add(int64(len(text)))
	return len(text), nil
}

// Each reader gets a small event first. The second event is large, and the user's limit has room
// for only one such event at a time. The other readers wait.
func TestWaitingReadersHoldNoMemory(t *testing.T) {
	for _, path := range []string{"/events/stream", "/trajectory", "/trajectory?earlier=1"} {
		synctest.Test(t, func(t *testing.T) { waitForRoom(t, path) })
	}
}

func waitForRoom(t *testing.T, path string) {
	const readers, size = 7, 4 << 20
	options := DefaultOptions()
	options.Limits.Responses = limits.Bounds{User: size + 1<<20, All: 80 << 20}
	var before, memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	options.Archive = &stubArchive{sizes: []int{10, size, 10}}
	handler, goOn := New(&crowd{}, options, prometheus.NewRegistry()), make(chan struct{})
	var all sync.WaitGroup
	var reached atomic.Int64
	for range readers {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/conversations/ada"+path, http.NoBody)
		r.Header.Set(rest.KeyHeader, "ada")
		all.Go(func() {
			client := stalled{httptest.NewRecorder(), goOn, &atomic.Int64{}, &reached}
			defer func() {
				if cut := recover(); cut != nil || client.Code != http.StatusOK || client.read.Load() < size+20 {
					t.Errorf("%s: the answer is %d with %d bytes, aborted with %v", path, client.Code, client.read.Load(), cut)
				}
			}()
			handler.ServeHTTP(client, r)
		})
	}
	synctest.Wait()
	runtime.GC()
	runtime.ReadMemStats(&memory)
	if n := reached.Load(); n > 1 {
		t.Errorf("%s: %d readers got the large event at the same time", path, n)
	}
	close(goOn) // each reader then gets all events
	all.Wait()
	if held := int64(memory.HeapAlloc) - int64(before.HeapAlloc); held > readers*size/2 {
		t.Errorf("%s: %d readers hold %d MiB while all but one wait", path, readers, held>>20)
	}
}

func TestArchiveReadsAreBoundedPerUserAndInTotal(t *testing.T) {
	t.Parallel()
	archive := &stubArchive{patch: 10, reading: map[string]int{}}
	options := DefaultOptions()
	options.Archive = archive
	client := client(t, options)
	var all sync.WaitGroup
	for _, user := range []string{"ada", "bob", "eve", "jim", "joe"} {
		for _, path := range []string{"/usage", "/git/changes", "/git/patch", "/usage", "/git/changes"} {
			all.Go(func() {
				if got := ask(t, client, user, path); got.code != http.StatusOK {
					t.Errorf("%s of %s is answered %d", path, user, got.code)
				}
			})
		}
	}
	all.Wait()
	if archive.most > 3 {
		t.Errorf("%d endings were read at once", archive.most)
	}
}

// A slow reader of a long response occupies a connection for a long time, as a stream does.
func TestLongResponsesCountTowardsTheLimitOfStreams(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/trajectory", "/trajectory?earlier=1", "/git/patch", "/events/stream"} {
		options := DefaultOptions()
		options.Limits.Streams.User = 2
		options.Archive = &stubArchive{sizes: []int{1 << 20}, patch: 1 << 20, reading: map[string]int{}}
		client := client(t, options)
		for i := range 3 {
			want := http.StatusOK
			if i == int(options.Limits.Streams.User) {
				want = http.StatusTooManyRequests
			}
			if got := ask(t, client, "ada", path); got.code != want {
				t.Errorf("%s: the answer after %d others is %d, want %d", path, i, got.code, want)
			}
		}
		if got := ask(t, client, "bob", path); got.code != http.StatusOK {
			t.Errorf("%s: bob is answered %d", path, got.code)
		}
	}
}

// Each byte from the archive costs CPU time. The read rate of a user is therefore limited for the
// archive, as it is for running sessions. Other users must not wait.
func TestAUserWhoReadsTooMuchFromTheArchiveHasToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := DefaultOptions()
		options.Archive = &stubArchive{sizes: []int{4 << 20}}
		facade := New(&crowd{}, options, prometheus.NewRegistry())
		read := func(user string, times int) time.Duration {
			began := time.Now()
			for range times {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/conversations/"+user+"/events",
					http.NoBody)
				r.Header.Set(rest.KeyHeader, user)
				response := httptest.NewRecorder()
				if facade.ServeHTTP(response, r); response.Code != http.StatusOK {
					t.Errorf("the facade answers %d to %s", response.Code, user)
				}
			}
			return time.Since(began)
		}
		var all sync.WaitGroup
		for _, user := range []string{"ada", "eve", "joe"} { // the facade allows three archive reads at a time
			if took := read(user, 10); took > 0 {
				t.Errorf("the first 40 MiB of %s took %s", user, took)
			}
			all.Go(func() {
				if took := read(user, 20); took < 10*time.Second {
					t.Errorf("80 more MiB of %s took only %s", user, took)
				}
			})
		}
		time.Sleep(5 * time.Second) // fake time of the bubble
		if took := read("bob", 1); took > 0 {
			t.Errorf("bob waited for others for %s", took)
		}
		all.Wait()
	})
}

func TestEventPagesOfTheArchiveAreBoundedAndHaveNoGaps(t *testing.T) {
	t.Parallel()
	const m = 1 << 20
	options := DefaultOptions()
	options.Archive = &stubArchive{sizes: []int{10, 2 * m, m, 3 * m, 10, 16 * m, 10, m, 3 * m, 3 * m}}
	client := client(t, options)
	reads := 0
	read := func(query string) (ids []int, page session.EventPage) {
		user := []string{"ada", "bob", "eve", "jim", "joe"}[reads%5] // one user would exceed the read rate
		reads++
		text, err := io.ReadAll(ask(t, client, user, "/events?"+query).body)
		if err == nil {
			err = json.Unmarshal(text, &page)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > maxPage+m && len(page.Events) > 1 {
			t.Errorf("%s: %d events have %d bytes", query, len(page.Events), len(text))
		}
		for _, event := range page.Events {
			e, err := session.ParseEvent(event)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, e.ID)
		}
		return ids, page
	}
	var forwards, backwards []int
	for more := true; more; {
		ids, page := read(fmt.Sprintf("start_id=%d", len(forwards)))
		forwards, more = append(forwards, ids...), page.HasMore
	}
	for more, end := true, 9; more; end = 9 - len(backwards) {
		ids, page := read(fmt.Sprintf("reverse=true&end_id=%d", end))
		backwards, more = append(backwards, ids...), page.HasMore
	}
	if got := fmt.Sprint(forwards); got != "[0 1 2 3 4 5 6 7 8 9]" {
		t.Errorf("forwards: %s", got)
	}
	if got := fmt.Sprint(backwards); got != "[9 8 7 6 5 4 3 2 1 0]" {
		t.Errorf("backwards: %s", got)
	}
}

func render(t *testing.T, handler http.Handler, user string, texts ...string) (int, rest.Rendered) {
	t.Helper()
	body := jsonOf(t, map[string]any{"texts": texts})
	r := httptest.NewRequest(http.MethodPost, "/api/markdown", strings.NewReader(body))
	r.Header.Set(rest.KeyHeader, user)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	var rendered rest.Rendered
	if err := json.Unmarshal(w.Body.Bytes(), &rendered); err != nil {
		t.Error(err)
	}
	return w.Code, rendered
}

func TestOneRequestRendersABoundedAmountOfText(t *testing.T) {
	half := "**" + strings.Repeat("a", markdown.MaxText/2) + "**"
	if code, _ := render(t, handler(&stubCluster{}), stubKey, strings.Repeat("a", maxRenderBody)); code != 413 {
		t.Errorf("a large body is answered %d", code)
	}
	code, rendered := render(t, handler(&stubCluster{}), stubKey, "*a*", half, half, "*b*", half+half)
	if code != http.StatusOK || len(rendered.HTML) != 5 {
		t.Fatalf("answered %d with %d texts", code, len(rendered.HTML))
	}
	for i, want := range []string{"<p><em>a", "<p><strong>a", "<pre>**a", "<p><em>b", "<pre>**a"} {
		if got := rendered.HTML[i]; !strings.HasPrefix(got, want) {
			t.Errorf("text %d is %.20s…, want %s", i, got, want)
		}
	}
}

func TestOnlyOneRenderRequestOfAUserRunsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler := New(&crowd{}, DefaultOptions(), prometheus.NewRegistry())
		rendering, err := handler.server.budget.Wait(t.Context(), "ada", limits.Renders)
		if err != nil {
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Go(func() {
				if code, _ := render(t, handler, "ada", "a"); code != http.StatusTooManyRequests {
					t.Errorf("a second request at once: the answer is %d", code)
				}
			})
		}
		synctest.Wait()
		begun := time.Now()
		if code, _ := render(t, handler, "ada", "a"); code != http.StatusTooManyRequests || time.Since(begun) > 0 {
			t.Errorf("while two requests wait, the answer after %s is %d", time.Since(begun), code)
		}
		if code, _ := render(t, handler, "bob", "a"); code != http.StatusOK {
			t.Errorf("bob: the answer is %d", code)
		}
		waiting.Wait()
		rendering()
		if code, _ := render(t, handler, "ada", "a"); code != http.StatusOK {
			t.Errorf("after the first request: the answer is %d", code)
		}
	})
}
