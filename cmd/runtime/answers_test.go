package main_test

import (
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

func (p *pod) post(t *testing.T, body, header, value string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+session.EventsPath,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(header, value)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

func TestRequestsToASessionRequireAFacadeToken(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	token := func(key ed25519.PrivateKey, uid string) string {
		text, err := session.SignToken(key, session.Claims{Audience: session.AudienceSession, UID: uid,
			Expires: time.Now().Add(time.Minute).Unix()})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	p := newPod(t, session.Document{UID: "u1", PublicKey: public, FirstMessage: "say " + secretValues["custom.0"],
		Agent: agent("cat; sleep 60")})
	p.start(t)
	p.waitReady(t)
	_, other, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	const confirm = `{"action":"change_agent_state","args":{"agent_state":"user_confirmed"}}`
	for name, c := range map[string]struct {
		header, value string
		want          int
	}{
		"no credential":                  {"X-Nothing", "", http.StatusUnauthorized},
		"the session's key":              {"X-Session-API-Key", secretValues[session.KeyFile], http.StatusUnauthorized},
		"a token with another signature": {session.TokenHeader, token(other, "u1"), http.StatusUnauthorized},
		"another session's token":        {session.TokenHeader, token(private, "u2"), http.StatusUnauthorized},
		// The session accepts this token, but its agent is a plain command, which accepts no
		// answers.
		"the facade's token": {session.TokenHeader, token(private, "u1"), http.StatusConflict},
	} {
		if got := p.post(t, confirm, c.header, c.value); got != c.want {
			t.Errorf("with %s the answer is %d, want %d", name, got, c.want)
		}
	}
	for name, header := range map[string][]string{
		"the key": {"X-Session-API-Key", secretValues[session.KeyFile]}, "a token": {session.TokenHeader,
			token(private, "u1")},
	} {
		code, body := p.get(t, session.EventsPath, header...)
		var page struct{ Events []session.Event }
		if err := json.Unmarshal([]byte(body), &page); code != http.StatusOK || err != nil || len(page.Events) < 2 ||
			page.Events[1].Text() != "say ***" {
			t.Errorf("with %s the events are %d %s", name, code, body)
		}
	}
	if code, _ := p.get(t, session.EventsPath); code != http.StatusUnauthorized {
		t.Errorf("without a key the events are %d", code)
	}
}
