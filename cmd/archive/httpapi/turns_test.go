package httpapi_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

func getTurns(t *testing.T, address string, key ed25519.PrivateKey, audience, subject, query,
	tag string) (code int, newTag string, list session.TurnList) {
	t.Helper()
	token, err := archivetest.Signer(key, audience)(subject)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+session.ArchiveTurns+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(session.TokenHeader, token)
	if tag != "" {
		request.Header.Set("If-None-Match", tag)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
			t.Fatal(err)
		}
	}
	return response.StatusCode, response.Header.Get("ETag"), list
}

func TestOnlyTheManagerReadsTheOutcomesOfAllSessions(t *testing.T) {
	t.Parallel()
	address, key := archivetest.Serve(t, archivetest.Open(t, archivetest.InDirectory(t)), "u")
	for _, c := range []struct {
		audience, subject string
		want              int
	}{
		{session.AudienceTurns, session.TurnsSubject, http.StatusOK},
		{session.AudienceTurns, "u", http.StatusUnauthorized},
		{session.AudienceArchive, "u", http.StatusUnauthorized},
		{session.AudienceArchive, session.TurnsSubject, http.StatusUnauthorized},
		{session.AudienceSession, session.TurnsSubject, http.StatusUnauthorized},
	} {
		if got, _, _ := getTurns(t, address, key, c.audience, c.subject, "", ""); got != c.want {
			t.Errorf("a token of %s for %s gets %d, want %d", c.subject, c.audience, got, c.want)
		}
	}
	// The manager's token does not allow reports.
	code, _, _ := send(t, key, session.AudienceTurns, "u", http.MethodPost,
		address+session.ArchiveRoot+"u"+session.ArchiveTurn, "{}")
	if code != http.StatusUnauthorized {
		t.Errorf("a report with the manager's token gets %d", code)
	}
}

func TestARequestForOutcomesWaitsForAChange(t *testing.T) {
	t.Parallel()
	address, key := archivetest.Serve(t, archivetest.Open(t, archivetest.InDirectory(t)), "u")
	get := func(query, tag string) (int, string, session.TurnList) {
		t.Helper()
		return getTurns(t, address, key, session.AudienceTurns, session.TurnsSubject, query, tag)
	}
	code, tag, list := get("?wait=25", "")
	if code != http.StatusOK || tag == "" || len(list.Turns) != 0 {
		t.Fatalf("the first answer is %d, %s, %+v", code, tag, list)
	}
	if code, _, _ := get("?wait=1", tag); code != http.StatusNotModified {
		t.Errorf("without a change the answer is %d", code)
	}
	for _, query := range []string{"?wait=-1", "?wait=26", "?wait=x"} {
		if code, _, _ := get(query, tag); code != http.StatusUnprocessableEntity {
			t.Errorf("%s gets %d", query, code)
		}
	}
	reported := make(chan int, 1)
	began := time.Now()
	go func() {
		turn := `{"turn": {"state": "Failed", "reason": "NoModel", "message": "no\nmodel"}}`
		reported <- archivetest.Post(t, address, key, "u", session.ArchiveTurn, turn)
	}()
	code, _, list = get("?wait=25", tag)
	if took := time.Since(began); code != http.StatusOK || took > 10*time.Second {
		t.Errorf("the answer is %d after %s", code, took)
	}
	want := session.ReportedTurn{UID: "u", Conversation: "ns/u",
		Turn: v1alpha1.ConversationTurn{State: v1alpha1.TurnFailed, Reason: v1alpha1.ReasonNoModel, Message: "no model"}}
	if len(list.Turns) != 1 || list.Turns[0] != want {
		t.Errorf("the outcomes are %+v", list)
	}
	if code := <-reported; code != http.StatusOK {
		t.Errorf("the report gets %d", code)
	}
}

func TestMalformedReportsAboutTurnsAreRefused(t *testing.T) {
	t.Parallel()
	s := archivetest.Open(t, archivetest.InDirectory(t))
	address, key := archivetest.Serve(t, s, "u")
	for body, want := range map[string]int{
		"": 422, "[]": 422, `{"turn": {"state": "Fine", "reason": "A"}}`: 422,
		`{"turn": {"state": "Failed", "reason": "a b"}}`:                                                422,
		fmt.Sprintf(`{"turn": {"state": "Failed", "reason": "A", "message": %q}}`, make([]byte, 9<<10)): 422,
		"{}": 200,
	} {
		if got := archivetest.Post(t, address, key, "u", session.ArchiveTurn, body); got != want {
			t.Errorf("%.60s gets %d, want %d", body, got, want)
		}
	}
	if got := archivetest.Post(t, address, key, "gone", session.ArchiveTurn, "{}"); got != http.StatusGone {
		t.Errorf("a report about a deleted conversation gets %d", got)
	}
}

// The manager writes a status and an event for each report, so the archive must limit the reports.
func TestReportsAboutTurnsAreRateLimited(t *testing.T) {
	t.Parallel()
	address, key := archivetest.Serve(t, archivetest.Open(t, archivetest.InDirectory(t)), "u")
	for i := range 100 {
		code, header, _ := send(t, key, session.AudienceArchive, "u", http.MethodPost,
			address+session.ArchiveRoot+"u"+session.ArchiveTurn,
			fmt.Sprintf(`{"turn": {"state": "Failed", "reason": "TurnFailed", "message": "number %d"}}`, i))
		switch {
		case code == http.StatusTooManyRequests && i > 0 && header.Get("Retry-After") != "":
			return
		case code != http.StatusOK:
			t.Fatalf("report %d gets %d", i, code)
		}
	}
	t.Error("100 reports in a row are accepted")
}
