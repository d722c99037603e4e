package httpapi_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

// FuzzUpload uploads arbitrary bodies with the token of a session. The archive stores or refuses
// each body, and stays readable.
func FuzzUpload(f *testing.F) {
	paths := []string{session.ArchiveEvents, session.ArchiveNewJournal, session.ArchiveEnd, session.ArchiveClaim,
		session.ArchiveTurn, session.ArchiveSnapshot, session.ArchiveSnapshot + "/1-0123456789abcdef/0"}
	for at := range paths {
		for _, seed := range [][2]string{
			{"from=0&journal=" + archivetest.Journal, "{\"id\":0}\n{\"id\":1}\n"}, {"from=-1", "{\"id\":-1}\n"},
			{"attempt=1&replaces=1-0", `{"id":"1-0123456789abcdef","chunks":1,"seal":"AA=="}`},
			{"attempt=99999999999999999999", `{"state":"Failed","reason":"TurnFailed","message":"x"}`},
			{"from=x&earlier=-1", `{"changes":[{"path":"a"}],"usage":{"cost":"1"}}`}, {"", "null"}, {"%", ""}, {"", "\x00"},
		} {
			f.Add(at, seed[0], []byte(seed[1]))
		}
	}
	s := archivetest.Open(f, archivetest.InDirectory(f))
	address, key := archivetest.Serve(f, s, "u")
	f.Fuzz(func(t *testing.T, at int, query string, body []byte) {
		path := paths[uint(at)%uint(len(paths))]
		if values, err := url.ParseQuery(query); err == nil {
			path += "?" + values.Encode()
		}
		if code := archivetest.Post(t, address, key, "u", path, string(body)); code >= http.StatusInternalServerError {
			t.Errorf("POST %s %q: %d", path, body, code)
		}
		for _, path := range []string{"", session.ArchiveEvents, session.ArchiveEnd, session.ArchiveSnapshot} {
			code, _, answer := send(t, key, session.AudienceArchive, "u", http.MethodGet,
				address+session.ArchiveRoot+"u"+path, "")
			if code >= http.StatusInternalServerError {
				t.Errorf("GET %s: %d %.100s", path, code, answer)
			}
		}
	})
}
