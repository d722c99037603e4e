package archiveclient_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/facade/archiveclient"
)

// FuzzArchive decodes arbitrary archived bytes as events and as an ending, because a session can
// archive anything.
func FuzzArchive(f *testing.F) {
	for _, seed := range []string{
		"{\"id\":0}\n{\"id\":1}\n", "{\"id\":0}\n{\"id", "\n\n", `{"changes":[{"path":"a","diff":{}}],"patch":"x"}`,
		`{"changes":5}`, `{"changes":[[]]}`, `null`, ``, "\x00\n",
	} {
		f.Add([]byte(seed))
	}
	var text atomic.Pointer[[]byte]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(*text.Load())
	}))
	f.Cleanup(server.Close)
	client := archiveclient.New(server.URL, "", func(string) (string, error) { return "token", nil })
	f.Fuzz(func(t *testing.T, archived []byte) {
		text.Store(&archived)
		read := 0
		_ = client.Events(t.Context(), "u", 0, 0, func(_ int, event json.RawMessage) bool { read += len(event); return true })
		if read > len(archived) {
			t.Errorf("read %d of %d bytes", read, len(archived))
		}
		ending, err := client.Ending(t.Context(), "u")
		if err == nil && len(ending.Changes) > session.MaxChanges {
			t.Errorf("read %d changes", len(ending.Changes))
		}
		_, _ = client.Position(t.Context(), "u")
	})
}
