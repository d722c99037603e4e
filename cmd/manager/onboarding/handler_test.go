package onboarding

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/hack/test/openid"
)

func (f *fixture) send(server *httptest.Server, method, body string) (int, string) {
	f.Helper()
	request, err := http.NewRequestWithContext(f.Context(), method, server.URL, strings.NewReader(body))
	f.must(err)
	response, err := server.Client().Do(request)
	f.must(err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	f.must(err)
	return response.StatusCode, string(text)
}

func (f *fixture) serve() *httptest.Server {
	server := httptest.NewServer(f.Onboarder)
	f.Cleanup(server.Close)
	return server
}

func body(token string) string { return `{"token": "` + token + `"}` }

func TestOnlyAPersonWithAValidTokenIsOnboarded(t *testing.T) {
	f := newFixture(t)
	f.configure(`groups: [{group: "oidc:blue", namespace: BLUE}]`)
	server := f.serve()
	good := f.issuer.Claims("ada@example.com", "blue")
	for name, tc := range map[string]struct {
		method, body string
		code         int
	}{
		"a forged token":       {http.MethodPost, body(f.issuer.Forge(good)), http.StatusUnauthorized},
		"an unsigned token":    {http.MethodPost, body(f.issuer.SignNone(good)), http.StatusUnauthorized},
		"an expired token":     {http.MethodPost, body(f.issuer.Sign(good.With("exp", 1))), http.StatusUnauthorized},
		"another audience":     {http.MethodPost, body(f.issuer.Sign(good.With("aud", "x"))), http.StatusUnauthorized},
		"another issuer":       {http.MethodPost, body(openid.Start(t).Token("ada@example.com")), http.StatusUnauthorized},
		"text that is no JWT":  {http.MethodPost, body("x"), http.StatusUnauthorized},
		"no token":             {http.MethodPost, `{}`, http.StatusBadRequest},
		"an unknown field":     {http.MethodPost, `{"token": "x", "groups": ["oidc:blue"]}`, http.StatusBadRequest},
		"a body that is large": {http.MethodPost, body(strings.Repeat("x", maxBody)), http.StatusRequestEntityTooLarge},
		"another method":       {http.MethodGet, "", http.StatusMethodNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			code, text := f.send(server, tc.method, tc.body)
			if code != tc.code || !strings.Contains(text, "detail") {
				t.Errorf("the response is %d %s, want %d", code, text, tc.code)
			}
		})
	}
	if got := f.count(f.blue); got > 0 {
		t.Fatalf("%d UserSettings were created", got)
	}
	code, text := f.send(server, http.MethodPost, body(f.issuer.Sign(good)))
	var got Answer
	f.must(json.Unmarshal([]byte(text), &got))
	if code != http.StatusOK || len(got.Settings) != 1 || got.Settings[0].Namespace != f.blue ||
		!strings.Contains(text, `"problems":[]`) {
		t.Errorf("the response to a valid token is %d %s", code, text)
	}
}

func TestOnboardingAnswers503WhileTheProviderIsDown(t *testing.T) {
	f := newFixture(t)
	f.issuer.SetDown(true)
	server, token := f.serve(), f.issuer.Token("ada@example.com")
	if code, text := f.send(server, http.MethodPost, body(token)); code != http.StatusServiceUnavailable {
		t.Errorf("the response is %d %s", code, text)
	}
	f.issuer.SetDown(false)
	if code, text := f.send(server, http.MethodPost, body(token)); code != http.StatusOK {
		t.Errorf("the response is %d %s", code, text)
	}
}

func TestRequestsOfOnePersonAreRateLimited(t *testing.T) {
	f := newFixture(t)
	server, token := f.serve(), f.issuer.Token("ada@example.com")
	limited := 0
	for range personBurst + 3 {
		if code, _ := f.send(server, http.MethodPost, body(token)); code == http.StatusTooManyRequests {
			limited++
		}
	}
	if limited == 0 {
		t.Error("one person is not limited")
	}
	if code, text := f.send(server, http.MethodPost, body(f.issuer.Token("bob@example.com"))); code != http.StatusOK {
		t.Errorf("another person gets %d %s", code, text)
	}
}

// A client that sends its body slowly must not hold a slot or a connection for long.
func TestASlowRequestBodyIsCutOff(t *testing.T) {
	f := newFixture(t)
	server := f.serve()
	reader, writer := io.Pipe()
	defer writer.Close()
	go func() { _, _ = writer.Write([]byte(`{"token": "`)) }()
	began := time.Now()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, reader)
	f.must(err)
	response, err := server.Client().Do(request)
	if err == nil {
		defer response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("the response is %s", response.Status)
		}
	}
	if took := time.Since(began); took > 3*bodyTimeout {
		t.Errorf("the request took %s", took)
	}
}
