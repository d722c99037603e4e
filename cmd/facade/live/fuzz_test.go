package live

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/internal/answer"
)

// FuzzPage decodes an arbitrary response of a session as a page of events.
func FuzzPage(f *testing.F) {
	for _, seed := range []string{
		`{"events":[{"id":0},{"id":1}],"has_more":true}`, `{"has_more":false,"events":[]}`, `{"events":[{}],"events":[1]}`,
		`{"events":` + strings.Repeat("[", 50), `{"other":{"a":[1]},"events":[null]}`, `[]`, `{`, ``, "\x00",
	} {
		f.Add([]byte(seed), int64(10))
	}
	f.Fuzz(func(t *testing.T, text []byte, limit int64) {
		page, err := readPage(&pageReader{from: bytes.NewReader(text), limit: MaxResponse}, max(0, limit))
		if err == nil && (page == nil || len(page.Events) > MaxEvents) {
			t.Errorf("read %+v", page)
		}
	})
}

// FuzzFollow decodes an arbitrary response of a session as a stream of events, and as a refusal.
func FuzzFollow(f *testing.F) {
	for _, seed := range []string{
		"id: 0\ndata: {}\n\nid: 1\nevent: preview\ndata: {}\n\n: alive\n\n", "id: x\n", "data: \n\n", "\n\n\n", ":",
		"id: -9\ndata:", `{"detail":"no"}`, `{"error":null}`,
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	var text atomic.Pointer[[]byte]
	var refuses atomic.Bool
	s, c := talking(f, func(w http.ResponseWriter, _ *http.Request) {
		if refuses.Load() {
			w.WriteHeader(http.StatusConflict)
		}
		_, _ = w.Write(*text.Load())
	})
	budget := responseBudget(0)
	f.Fuzz(func(t *testing.T, answered []byte, refused bool) {
		text.Store(&answered)
		refuses.Store(refused)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		read := 0
		err := s.Follow(ctx, c, -1, true, hold(budget, "ada"), func(e Event) error { read += len(e.Data); return nil },
			func() error { return nil })
		if err == nil || ctx.Err() != nil || read > len(answered) {
			t.Errorf("read %d of %d bytes: %v", read, len(answered), err)
		}
		if _, err := s.Read(ctx, c, Call{Method: http.MethodGet, Path: "/"}, 1<<20); err != nil &&
			answer.CodeOf(err) == http.StatusInternalServerError {
			t.Errorf("an answer of a session is an internal error: %v", err)
		}
	})
}
