package httpapi_test

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/cmd/archive/store"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

// stallUpload begins an upload of the largest permitted size and does not finish it. It returns the
// status code: 100 if the archive waits for the body, or 429 if it refuses the upload.
func stallUpload(t *testing.T, address string, key ed25519.PrivateKey, uid string) (status string) {
	t.Helper()
	token, err := archivetest.Signer(key, session.AudienceArchive)(uid)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s%s%s?from=0 HTTP/1.1\r\nHost: x\r\n%s: %s\r\nContent-Length: %d\r\nExpect: "+
		"100-continue\r\n\r\n",
		session.ArchiveRoot, uid, session.ArchiveEvents, session.TokenHeader, token, session.MaxArchived)
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("HTTP/1.1 100"))
	if _, err := io.ReadFull(conn, line); err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(string(line), "HTTP/1.1 ")
}

func TestStalledUploadsDoNotDelayOtherUploads(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u-0 u-1 u-2 u-3 u-4 u-5 u-6 u-7 v")
	refused := 0
	for i := range 8 { // all sessions of one user
		switch got := stallUpload(t, address, key, fmt.Sprintf("u-%d", i)); got {
		case "100":
		case "429":
			refused++
		default:
			t.Errorf("the answer is %s", got)
		}
	}
	if refused != 7 {
		t.Errorf("%d sessions of the user are refused, want all but one", refused)
	}
	if got := archivetest.Post(t, address, key, "v", session.ArchiveEvents+"?from=0&journal="+archivetest.Journal,
		string(archivetest.Lines(0, 3))); got != http.StatusOK {
		t.Errorf("the answer to another session is %d", got)
	}
}

// Each entry of the list takes three bytes in the body, but many more bytes after decoding.
func TestAFinalReportWithMillionsOfFilesTakesLittleMemory(t *testing.T) {
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u")
	body := `{"changes":[` + strings.Repeat("{},", session.MaxArchived/3-10) + `{}]}`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if got := archivetest.Post(t, address, key, "u", session.ArchiveEnd, body); got != http.StatusOK {
		t.Errorf("the answer is %d", got)
	}
	if ending, err := s.Ending(t.Context(), "u"); err != nil || len(ending.Changes) != session.MaxChanges {
		t.Errorf("the ending is %v", err)
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 400 {
		t.Errorf("the request took %d MiB", took)
	}
}

func TestInvalidFinalReportsOfSessionsAreRefused(t *testing.T) {
	t.Parallel()
	address, key := archivetest.Serve(t, archivetest.Open(t, archivetest.InDirectory(t)), "u")
	for _, body := range []string{"", "x", `{}x`, `{"changes":{}}`, `{"changes":[{]}`, `[]`} {
		if got := archivetest.Post(t, address, key, "u", session.ArchiveEnd, body); got != http.StatusUnprocessableEntity {
			t.Errorf("%q is answered with %d", body, got)
		}
	}
}

// stalled is a client that reads nothing.
type stalled struct {
	header http.Header
	once   sync.Once
	begun  func()
	over   <-chan struct{}
	// refused receives the status code of an error response; nil if the test expects no error.
	refused chan<- int
}

func (s *stalled) Header() http.Header { return s.header }

func (s *stalled) WriteHeader(code int) {
	if code >= http.StatusBadRequest {
		s.once.Do(func() { s.refused <- code })
	}
}

func (s *stalled) Write(text []byte) (int, error) {
	s.once.Do(s.begun)
	<-s.over
	runtime.KeepAlive(text)
	return 0, io.ErrClosedPipe
}

func TestSlowReadersOfLargeEventsTakeLittleMemory(t *testing.T) {
	const readers, size = 24, 16 << 20
	s := archivetest.Open(t, archivetest.InDirectory(t))
	large := `{"id":0,"message":"` + strings.Repeat("x", size) + "\"}\n"
	batch := store.Batch{Journal: archivetest.Journal, Lines: []byte(large)}
	if _, err := s.Append(t.Context(), "u", 0, batch); err != nil {
		t.Fatal(err)
	}
	if err := s.End(t.Context(), "u", 0, []byte(`{"patch":"`+strings.Repeat("x", size)+`"}`)); err != nil {
		t.Fatal(err)
	}
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := archivetest.Signer(key, session.AudienceArchive)("u")
	if err != nil {
		t.Fatal(err)
	}
	known := func() ([]ed25519.PublicKey, error) { return []ed25519.PublicKey{public}, nil }
	handler := httpapi.NewHandler(s.Store, archivetest.Existing("u"), known)
	over := make(chan struct{})
	var begun, ended sync.WaitGroup
	for i := range readers {
		path := session.ArchiveRoot + "u" + []string{session.ArchiveEvents, session.ArchiveEnd}[i%2]
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		request.Header.Set(session.TokenHeader, token)
		begun.Add(1)
		ended.Go(func() {
			defer func() { _ = recover() }() // a truncated response ends in a panic
			handler.ServeHTTP(&stalled{header: http.Header{}, begun: begun.Done, over: over}, request)
		})
	}
	begun.Wait()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	close(over)
	ended.Wait()
	if most := uint64(readers * size / 8); memory.HeapAlloc > most {
		t.Errorf("%d readers hold %d MiB", readers, memory.HeapAlloc>>20)
	}
}

func TestReadingTheJournalPositionTakesLittleMemory(t *testing.T) {
	const size = 8 << 20
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	journal, last := "", ""
	for id := range 6 {
		large := fmt.Sprintf(`{"id":%d,"message":"%s"}`, id, strings.Repeat("x", size))
		last = session.JournalName([]byte(large))
		journal = cmp.Or(journal, last)
		if _, err := s.Append(t.Context(), "u", 0, store.Batch{Journal: journal, From: id,
			Lines: []byte(large + "\n")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.End(t.Context(), "u", 0, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(archivetest.Dir(address), "u", "events", fmt.Sprintf("%012d", 5))
	// The first round appends nothing. The second round appends a truncated event.
	for _, cut := range []string{"", `{"id":6,"message":"` + strings.Repeat("x", size)} {
		text, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = text.WriteString(cut)
		}
		if err = errors.Join(err, text.Close()); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		position, err := archivetest.Open(t, address).Position(t.Context(), "u")
		runtime.ReadMemStats(&after)
		if err != nil || position.Next != 6 || position.Last != last {
			t.Errorf("the position is %+v, %v", position, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > size/2 {
			t.Errorf("the read took %d KiB", took>>10)
		}
	}
}

func TestReadersOfOneOwnerDoNotBlockOtherOwners(t *testing.T) {
	s := archivetest.Open(t, archivetest.InDirectory(t))
	conversations := []string{"ada-1", "ada-2", "ada-3", "ada-4", "ada-5", "bob-1"}
	for _, uid := range conversations {
		archivetest.Append(t, s, uid, 0, 3, 3)
	}
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	known := func() ([]ed25519.PublicKey, error) { return []ed25519.PublicKey{public}, nil }
	handler := httpapi.NewHandler(s.Store, archivetest.Existing(strings.Join(conversations, " ")), known)
	over := make(chan struct{})
	var ended sync.WaitGroup
	// read requests the events of a conversation, as a client that does not read the response. It
	// returns the status code as soon as the archive begins or refuses the response.
	read := func(uid string) int {
		token, err := archivetest.Signer(key, session.AudienceArchive)(uid)
		if err != nil {
			t.Fatal(err)
		}
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, session.ArchiveRoot+uid+session.ArchiveEvents,
			nil)
		request.Header.Set(session.TokenHeader, token)
		begun := make(chan int, 2)
		client := &stalled{header: http.Header{}, over: over, begun: func() { begun <- http.StatusOK }, refused: begun}
		ended.Go(func() {
			defer func() { _ = recover() }() // a truncated response ends in a panic
			handler.ServeHTTP(client, request)
		})
		code := <-begun
		if code != http.StatusOK && client.header.Get("Retry-After") == "" {
			t.Errorf("the answer to %s has no Retry-After", uid)
		}
		return code
	}
	taken := map[string]int{}
	for _, uid := range conversations {
		for read(uid) == http.StatusOK {
			taken[uid]++
		}
	}
	close(over)
	ended.Wait()
	if got := fmt.Sprint(taken); got != "map[ada-1:32 ada-2:32 ada-3:32 ada-4:32 bob-1:32]" {
		t.Errorf("slots were taken by %s", got)
	}
}

// A long event is read in parts. The response must contain the whole event, wherever the event is
// in the journal.
func TestLargeEventsAreReadCompletely(t *testing.T) {
	t.Parallel()
	address := archivetest.InDirectory(t)
	s := archivetest.Open(t, address)
	var text strings.Builder
	for id := range 600 {
		length := 10
		if id%100 == 0 || id == 256 || id == 512 {
			length = 200<<10 + id
		}
		fmt.Fprintf(&text, "{\"id\":%d,\"message\":\"%s\"}\n", id, strings.Repeat("x", length))
	}
	all := strings.SplitAfter(text.String(), "\n")
	for from := 0; from < 600; from += 300 { // in two segments
		part := strings.Join(all[from:from+300], "")
		if _, err := s.Append(t.Context(), "u", 0, store.Batch{Journal: archivetest.NameOf([]byte(all[0])), From: from,
			Lines: []byte(part)}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, from := range []int{0, 1, 100, 255, 256, 257, 299, 300, 511, 512, 513, 599, 600} {
			var got bytes.Buffer
			if err := s.Copy(t.Context(), "u", 0, from, &got); err != nil {
				t.Fatal(err)
			}
			if want := strings.Join(all[from:], ""); got.String() != want {
				t.Errorf("events from %d have %d bytes, want %d", from, got.Len(), len(want))
			}
			want := fmt.Sprintf("%d-599 of %d", from, 600-from)
			if got := archivetest.IDs(t, s, "u", from); from < 600 && got != want {
				t.Errorf("events from %d are %s, want %s", from, got, want)
			}
		}
		if err := s.End(t.Context(), "u", 0, []byte("{}")); err != nil { // in the second round, the session has ended
			t.Fatal(err)
		}
	}
}
