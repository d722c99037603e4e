package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func TestASessionCannotUseTheArchivedDataOfAnotherSession(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u v")
	if code := archivetest.HandOver(t, address, key, "u", 0, 3); code != http.StatusOK {
		t.Fatalf("the session's own upload gets %d", code)
	}
	chunk := session.ArchiveSnapshot + "/" + "0123456789abcdef0123456789abcdef" + "/0"
	for _, call := range [][2]string{
		{http.MethodGet, ""},
		{http.MethodGet, session.ArchiveEvents}, {http.MethodPost, session.ArchiveEvents},
		{http.MethodPost, session.ArchiveNewJournal},
		{http.MethodGet, session.ArchiveEnd}, {http.MethodPost, session.ArchiveEnd},
		{http.MethodPost, session.ArchiveClaim},
		{http.MethodGet, session.ArchiveSnapshot}, {http.MethodPost, session.ArchiveSnapshot},
		{http.MethodGet, chunk}, {http.MethodPost, chunk},
		{http.MethodPost, session.ArchiveTurn},
		{http.MethodGet, session.ArchiveModel},
	} {
		code, _, answer := send(t, key, session.AudienceArchive, "v", call[0], address+session.ArchiveRoot+"u"+call[1], "{}")
		if code != http.StatusUnauthorized {
			t.Errorf("%s %s with the token of another session gets %d %.60s", call[0], call[1], code, answer)
		}
	}
}
