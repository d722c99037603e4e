package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/rest"
)

type call struct{ method, path string }

// resolved returns the path with values instead of the placeholders.
func (c call) resolved() string {
	return strings.NewReplacer("{id}", "talk", "{name}", "x").Replace(c.path)
}

// userCalls returns every call in openapi.yaml that needs a credential. A test of package server
// compares openapi.yaml with the routes.
func userCalls(t *testing.T) (all []call) {
	t.Helper()
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(rest.OpenAPI, &document); err != nil {
		t.Fatal(err)
	}
	for path, methods := range document.Paths {
		for method, text := range methods {
			var operation struct{ Security *[]any }
			if method == "parameters" || json.Unmarshal(text, &operation) != nil || operation.Security != nil {
				continue
			}
			all = append(all, call{strings.ToUpper(method), path})
		}
	}
	return append(all, call{"GET", "/socket.io/?EIO=4&transport=websocket&conversation_id={id}"})
}

// ask sends a request. Unlike do, it does not check whether openapi.yaml documents the response.
func (p *person) ask(t *testing.T, c call, headers ...string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), c.method, p.url+c.resolved(),
		strings.NewReader(`{"title": "stolen", "conversation_id": "talk"}`))
	if err != nil {
		t.Fatal(err)
	}
	headers = append(slices.Clone(p.headers), headers...)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return sendRaw(t, request)
}

func sendRaw(t *testing.T, request *http.Request) (int, string) {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body := make([]byte, 4<<10)
	n, _ := response.Body.Read(body) // the beginning suffices; a stream would not end
	return response.StatusCode, strings.TrimSpace(string(body[:n]))
}

// Ada and Bob share a namespace. Bob tries each call with Ada's conversation, and with Ada's
// settings.
func TestNoCallReachesAnotherPersonsConversation(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	adas := o.settings(t, "ada", adaName, "oidc:red")
	o.settings(t, "bob", bobName, "oidc:blue")
	ada := o.bearer("ada", o.issuer.Token("ada@example.com", "red"))
	await(t, func() error { return codeOf(ada.get(t, "/api/settings"), 200) })
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	ada.get(t, "/api/conversations/talk/config").wants(t, 200)
	before := ada.conversation(t, "talk")

	// Bob is in his own group, blue, and in Ada's group, red.
	claims := o.issuer.Claims("bob@example.com", "blue", "red")
	bobs := map[string]*person{"token": o.bearer("bob", o.issuer.Sign(claims)), "cookie": o.signIn(t, "bob", claims)}
	await(t, func() error { return codeOf(bobs["token"].get(t, "/api/settings"), 200) })
	attempts := 0
	for how, bob := range bobs {
		for _, c := range userCalls(t) {
			if strings.Contains(c.path, "{id}") {
				attempts++
				code, body := bob.ask(t, c)
				// As in OpenHands, these two calls return 200 even if the conversation is unknown.
				unknown := c == call{"GET", "/api/conversations/{id}"} && body == "null" ||
					c == call{"DELETE", "/api/conversations/{id}"} && body == "false"
				if code != http.StatusNotFound && (code != http.StatusOK || !unknown) {
					t.Errorf("with a %s, %s %s of another person is answered with %d %s", how, c.method, c.path, code, body)
				}
			}
			attempts++
			if code, body := bob.ask(t, c, rest.SettingsHeader, o.namespace+"/ada"); code != http.StatusForbidden {
				t.Errorf("with a %s, %s %s with the settings of another person is answered with %d %s", how, c.method, c.path,
					code, body)
			}
		}
		attempts += 4
		bob.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, http.StatusConflict)
		bob.get(t, "/api/conversations").wants(t, http.StatusOK).lacks(t, "talk")
		chosen := bob.post(t, "/api/session/settings", `{"namespace": "`+o.namespace+`", "name": "ada"}`, "Origin",
			o.facade.URL)
		if chosen.code != http.StatusForbidden && chosen.code != http.StatusUnauthorized {
			t.Errorf("with a %s, the choice of another person's settings is answered with %d", how, chosen.code)
		}
		if listed := bob.get(t, "/api/session"); strings.Contains(listed.body, `"ada"`) {
			t.Errorf("with a %s, the session is %s", how, listed.body)
		}
	}
	if attempts < 60 {
		t.Errorf("only %d attempts", attempts)
	}
	t.Logf("%d attempts", attempts)
	if after := ada.conversation(t, "talk"); after.UID != before.UID || after.Generation != before.Generation ||
		after.Annotations["parley.dev/title"] != "" {
		t.Errorf("the conversation was changed: %+v", after.ObjectMeta)
	}
	if after := ada.settings(t); after.Generation != adas.Generation || after.UID != adas.UID {
		t.Error("the settings were changed")
	}
}
