package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/audit"
)

const adaName, bobName = "oidc:ada@example.com", "oidc:bob@example.com"

func TestAPersonSignsInWithTheProvider(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	stranger := &person{url: o.facade.URL}
	stranger.get(t, "/api/signin/options").wants(t, 200).says(t, jsonOf(t, map[string]any{"oidc": map[string]any{
		"issuer": o.issuer.URL, "cli_client_id": "parley-cli", "scopes": []string{"openid", "profile", "email", "groups"}}}))
	o.settings(t, "ada", adaName, "oidc:red")
	ada := o.signIn(t, "ada", o.issuer.Claims("ada@example.com", "red", "green"))
	own := []map[string]string{{"namespace": o.namespace, "name": "ada"}}
	await(t, func() error { return codeOf(ada.get(t, "/api/conversations"), 200) })
	ada.get(t, "/api/session").wants(t, 200).says(t, jsonOf(t, map[string]any{"user": "ada", "namespace": o.namespace,
		"settings_stored": true, "person": adaName, "settings": own}))
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	if by := ada.conversation(t, "talk").Annotations[v1alpha1.AnnotationRequestedBy]; by != adaName {
		t.Errorf("the conversation was requested by %q", by)
	}
	ada.post(t, "/api/conversations", `{}`, "Origin", "https://evil.example.com").wants(t, 403)
	ada.post(t, "/api/signin/link", "").wants(t, 403) // a link would outlive the sign-in

	out := ada.post(t, "/api/signout", "").wants(t, 200)
	if got := out.field(t, "end_session_url"); got != o.issuer.URL+"/end?client_id=parley" {
		t.Errorf("the session at the provider ends at %v", got)
	}
	await(t, func() error { return codeOf(ada.get(t, "/api/conversations"), 401) })
	ada.get(t, "/api/session").wants(t, 200).says(t,
		`{"user": null, "namespace": null, "settings_stored": false, "person": null, "settings": []}`)
}

func TestSessionKeysStillWorkIfAnOpenIDProviderIsConfigured(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	o.settings(t, "ada", adaName, "oidc:red")
	ada := &person{url: o.facade.URL, namespace: o.namespace, name: "ada"}
	ada.learnKey(t)
	// If a request has a session key, the facade ignores its other credentials.
	ada.do(t, "GET", "/api/conversations", "", "Authorization", "Bearer x.y.z").wants(t, 200)
	ada.post(t, "/api/conversations", `{"conversation_id": "talk"}`).wants(t, 200)
	if by, found := ada.conversation(t, "talk").Annotations[v1alpha1.AnnotationRequestedBy]; found {
		t.Errorf("the conversation of a key was requested by %q", by)
	}
	page := &person{url: o.facade.URL}
	in := page.post(t, "/api/signin", jsonOf(t, map[string]string{"key": ada.key}), "Origin", o.facade.URL).wants(t, 200)
	if in.field(t, "person") != nil {
		t.Errorf("signed in as %s", in.body)
	}
	cookie, _, _ := strings.Cut(in.header.Get("Set-Cookie"), ";")
	page.do(t, "GET", "/api/conversations", "", "Cookie", cookie, "Authorization", "Bearer x.y.z").wants(t, 200)
	page.post(t, "/api/session/settings", `{"namespace": "a", "name": "b"}`, "Cookie", cookie, "Origin",
		o.facade.URL).wants(t, 403)
}

func TestAPersonWithSeveralSettingsChoosesOne(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	o.settings(t, "blue", adaName, "oidc:blue")
	o.settings(t, "red", adaName, "oidc:red")
	o.settings(t, "gone", adaName, "oidc:gone") // ada left this group
	o.settings(t, "bob", bobName, "oidc:red")
	names := []map[string]string{{"namespace": o.namespace, "name": "blue"}, {"namespace": o.namespace, "name": "red"}}
	token := o.issuer.Token("ada@example.com", "red", "blue")
	byToken := o.bearer("", token)
	await(t, func() error { return codeOf(byToken.get(t, "/api/conversations"), 409) })
	byCookie := o.signIn(t, "", o.issuer.Claims("ada@example.com", "red", "blue"))
	for name, ada := range map[string]*person{"token": byToken, "cookie": byCookie} {
		t.Run(name, func(t *testing.T) {
			refused := ada.get(t, "/api/settings").wants(t, 409)
			var choice rest.SettingsChoice
			if err := json.Unmarshal([]byte(refused.body), &choice); err != nil || len(choice.Settings) != 2 {
				t.Errorf("the choice is %s", refused.body)
			}
			ada.get(t, "/api/session").wants(t, 200).says(t, jsonOf(t, map[string]any{"user": nil, "namespace": nil,
				"settings_stored": false, "person": adaName, "settings": names}))
			choose := func(settings string) reply {
				return ada.do(t, "GET", "/api/settings", "", rest.SettingsHeader, settings)
			}
			choose(o.namespace+"/red").wants(t, 200)
			for _, other := range []string{"gone", "bob", "nothing", ""} {
				choose(o.namespace+"/"+other).wants(t, 403)
			}
			choose("red").wants(t, 403)
			// For links, streams and sockets, browsers name the UserSettings in the query, not in a header.
			for path, found := range map[string]int{"/api/settings?": 200, "/api/conversations/talk/events/stream?": 404,
				"/socket.io/?EIO=4&transport=websocket&conversation_id=talk&": 404} {
				for settings, want := range map[string]int{"": 409, o.namespace + "/red": found, o.namespace + "/bob": 403} {
					if code, body := ada.ask(t, call{"GET", path + "settings=" + settings}); code != want {
						t.Errorf("%s with %q: answered %d %s, want %d", path, settings, code, body, want)
					}
				}
			}
			ada.do(t, "GET", "/api/settings?settings="+o.namespace+"/red", "", rest.SettingsHeader,
				o.namespace+"/bob").wants(t, 403)
		})
	}
	choose := func(name string) reply {
		return byCookie.post(t, "/api/session/settings", jsonOf(t, map[string]string{"namespace": o.namespace, "name": name}))
	}
	choose("bob").wants(t, 403)
	choose("gone").wants(t, 403)
	byCookie.post(t, "/api/session/settings", `{"name": 1}`).wants(t, 422)
	byCookie.post(t, "/api/session/settings", `{}`, "Origin", "https://evil.example.com").wants(t, 403)
	(&person{url: o.facade.URL}).post(t, "/api/session/settings", `{}`, "Origin", o.facade.URL).wants(t, 401)
	chosen := choose("red").wants(t, 200)
	if chosen.field(t, "user") != "red" {
		t.Errorf("chosen are %s", chosen.body)
	}
	_, value, _ := strings.Cut(chosen.header.Get("Set-Cookie"), "=")
	value, _, _ = strings.Cut(value, ";")
	red := o.withCookie("red", value)
	red.get(t, "/api/settings").wants(t, 200)
	// The response to choose("red") contained a new cookie. A sign-out with the new cookie also
	// revokes the old cookie.
	red.post(t, "/api/signout", "").wants(t, 200)
	await(t, func() error { return codeOf(red.get(t, "/api/settings"), 401) })
	byCookie.get(t, "/api/settings").wants(t, 401)
}

func TestARevokedCookieStaysInvalidAfterSettingsAreDeleted(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	first := o.settings(t, "blue", adaName, "")
	o.settings(t, "red", adaName, "")
	byToken := o.bearer("", o.issuer.Token("ada@example.com"))
	await(t, func() error { return codeOf(byToken.get(t, "/api/conversations"), 409) })
	ada := o.signIn(t, "", o.issuer.Claims("ada@example.com"))
	ada.get(t, "/api/conversations").wants(t, 409)
	ada.post(t, "/api/signout", "").wants(t, 200)
	await(t, func() error { return codeOf(ada.get(t, "/api/conversations"), 401) })
	if err := suite.Client.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return codeOf(byToken.get(t, "/api/conversations"), 200) })
	ada.get(t, "/api/conversations").wants(t, 401)
}

func TestAPersonWithoutSettingsIsToldToAskAnAdministrator(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	for _, eve := range []*person{o.bearer("", o.issuer.Token("eve@example.com")),
		o.signIn(t, "", o.issuer.Claims("eve@example.com"))} {
		refused := eve.get(t, "/api/conversations").wants(t, 403)
		if !strings.Contains(refused.body, "administrator") {
			t.Errorf("the answer is %s", refused.body)
		}
		eve.get(t, "/api/session").wants(t, 200).says(t, jsonOf(t, map[string]any{"user": nil, "namespace": nil,
			"settings_stored": false, "person": "oidc:eve@example.com", "settings": []string{}}))
	}
}

func TestAccessEndsWhenTheOwnerOrTheGroupChanges(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	settings := o.settings(t, "ada", adaName, "oidc:red")
	in := o.bearer("ada", o.issuer.Token("ada@example.com", "red"))
	await(t, func() error { return codeOf(in.get(t, "/api/conversations"), 200) })
	o.bearer("ada", o.issuer.Token("ada@example.com", "blue")).get(t, "/api/conversations").wants(t, 403)
	cookie := o.signIn(t, "ada", o.issuer.Claims("ada@example.com", "red"))
	cookie.get(t, "/api/conversations").wants(t, 200)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"owner": {"username": "`+bobName+`"}}}`))
	if err := suite.Client.Patch(t.Context(), settings, patch); err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return errors.Join(codeOf(in.get(t, "/api/conversations"), 403)) })
	cookie.get(t, "/api/conversations").wants(t, 403)
	o.bearer("ada", o.issuer.Token("bob@example.com", "red")).get(t, "/api/conversations").wants(t, 200)
}

func TestInvalidBearerTokensAreRefused(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	o.settings(t, "ada", adaName, "")
	good := o.issuer.Claims("ada@example.com")
	await(t, func() error { return codeOf(o.bearer("", o.issuer.Sign(good)).get(t, "/api/conversations"), 200) })
	for name, token := range map[string]string{
		"expired": o.issuer.Sign(good.With("exp", time.Now().Add(-time.Minute).Unix())), "forged": o.issuer.Forge(good),
		"unsigned": o.issuer.SignNone(good), "signed with the public key": o.issuer.SignHMAC(good),
		"of another audience":     o.issuer.Sign(good.With("aud", "other")),
		"that is an access token": o.issuer.SignAs("at+jwt", good),
		"of another issuer":       o.issuer.Sign(good.With("iss", "https://evil.example.com")),
		"that is no JWT":          "x", "huge": strings.Repeat("x", 17<<10),
	} {
		if got := o.bearer("", token).get(t, "/api/conversations"); got.code != 401 {
			t.Errorf("a token %s is answered with %d %s", name, got.code, got.body)
		}
	}
	expiring := o.issuer.Sign(good.With("exp", time.Now().Add(2*time.Second).Unix()))
	o.bearer("", expiring).get(t, "/api/conversations").wants(t, 200)
	await(t, func() error { return codeOf(o.bearer("", expiring).get(t, "/api/conversations"), 401) })
	o.issuer.Rotate()
	o.bearer("", o.issuer.Sign(good)).get(t, "/api/conversations").wants(t, 200)
	if strings.Contains(o.facade.Log.String(), expiring) {
		t.Error("a token is in the log")
	}
}

// A pipeline in Kubernetes needs no stored session key.
func TestAKubernetesTokenAuthenticatesAServiceAccount(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t)
	token := o.serviceAccountToken(t, "pipeline", "parley")
	owner := "system:serviceaccount:" + o.namespace + ":pipeline"
	o.settings(t, "pipeline", owner, "")
	pipeline := o.bearer("pipeline", token)
	await(t, func() error { return codeOf(pipeline.get(t, "/api/conversations"), 200) })
	pipeline.post(t, "/api/conversations", `{"conversation_id": "build"}`).wants(t, 200)
	if by := pipeline.conversation(t, "build").Annotations[v1alpha1.AnnotationRequestedBy]; by != owner {
		t.Errorf("the conversation was requested by %q", by)
	}
	pipeline.post(t, "/api/signin/link", "").wants(t, 403)
	o.bearer("", o.serviceAccountToken(t, "other", "parley")).get(t, "/api/conversations").wants(t, 403)
	o.bearer("", o.serviceAccountToken(t, "wrong", "vault")).get(t, "/api/conversations").wants(t, 401)
	o.bearer("", o.serviceAccountToken(t, "default-audience")).get(t, "/api/conversations").wants(t, 401)
}

func TestChangesAreAudited(t *testing.T) {
	t.Parallel()
	o := newOrganisation(t, "--trusted-proxies=127.0.0.0/8")
	o.settings(t, "ada", adaName, "")
	ada := o.bearer("ada", o.issuer.Token("ada@example.com"))
	await(t, func() error { return codeOf(ada.get(t, "/api/conversations"), 200) })
	secret := canary()
	ada.post(t, "/api/conversations", `{"conversation_id": "talk", "initial_user_msg": "`+secret+`"}`, "X-Request-ID",
		"one", "X-Forwarded-For", "203.0.113.9, 198.51.100.7, 127.0.0.2").wants(t, 200)
	ada.post(t, "/api/conversations/talk/events", `{"action": "change_agent_state", "note": "`+secret+`",
		"args": {"agent_state": "user_confirmed"}}`, "X-Request-ID", "two")
	(&person{url: o.facade.URL, key: secret}).do(t, "DELETE", "/api/conversations/Not+an+ID", "", "X-Request-ID",
		"three").wants(t, 401)
	ada.post(t, "/api/markdown", `{"texts": []}`).wants(t, 200)
	o.signIn(t, "ada", o.issuer.Claims("ada@example.com"))
	text, err := os.ReadFile(o.audit)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), secret) {
		t.Error("the audit log has content")
	}
	var entries []audit.Entry
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		var entry audit.Entry
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			t.Fatal(err)
		}
		if time.Since(entry.Time) > time.Minute {
			t.Errorf("the time is %s", entry.Time)
		}
		entry.Time = time.Time{}
		entries = append(entries, entry)
	}
	settings := o.namespace + "/ada"
	want := []audit.Entry{
		{Person: adaName, Settings: settings, How: "oidc", Address: "198.51.100.7", Call: "POST /api/conversations",
			Conversation: "talk", Outcome: 200, RequestID: "one"},
		{Person: adaName, Settings: settings, How: "oidc", Call: "POST /api/conversations/{id}/events", Conversation: "talk",
			Action: "change_agent_state user_confirmed", Outcome: http.StatusServiceUnavailable, RequestID: "two"},
		{How: "key", Call: "DELETE /api/conversations/{id}", Outcome: 401, RequestID: "three"},
		{Person: adaName, Settings: settings, How: "oidc", Call: "GET /api/signin/callback", Outcome: 200},
	}
	if len(entries) != len(want) {
		t.Fatalf("the audit log is %s", text)
	}
	for i, entry := range entries {
		if want[i].Address == "" {
			entry.Address = ""
		}
		if want[i].RequestID == "" {
			entry.RequestID = ""
		}
		if fmt.Sprint(entry) != fmt.Sprint(want[i]) {
			t.Errorf("entry %d is %+v, want %+v", i, entry, want[i])
		}
	}
}
