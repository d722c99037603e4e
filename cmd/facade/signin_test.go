package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// After the sign-in, the page has only the cookie, not the key.
func TestACookieReplacesTheKeyUntilTheKeyChanges(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	page := &person{url: ada.url}
	page.get(t, "/api/session").wants(t, 200).says(t,
		`{"user": null, "namespace": null, "settings_stored": false, "person": null, "settings": []}`)
	key := jsonOf(t, map[string]string{"key": ada.key})
	page.post(t, "/api/signin", key).wants(t, 403)
	page.post(t, "/api/signin", `{"key": "wrong"}`, "Origin", ada.url).wants(t, 401)
	page.post(t, "/api/signin", `{"key": 1}`, "Origin", ada.url).wants(t, 422)
	signedIn := page.post(t, "/api/signin", key, "Origin", ada.url).wants(t, 200).lacks(t, ada.key)
	if signedIn.field(t, "user") != "ada" || signedIn.field(t, "namespace") != ada.namespace {
		t.Errorf("signed in as %s", signedIn.body)
	}
	cookie, _, _ := strings.Cut(signedIn.header.Get("Set-Cookie"), ";")

	page.do(t, "GET", "/api/conversations", "", "Cookie", cookie).wants(t, 200)
	page.post(t, "/api/settings", `{"language": "en"}`, "Cookie", cookie).wants(t, 403)
	page.post(t, "/api/settings", `{"language": "en"}`, "Cookie", cookie, "Origin", ada.url).wants(t, 200)
	page.do(t, "GET", "/api/session", "", "Cookie", cookie).wants(t, 200).says(t, jsonOf(t, map[string]any{"user": "ada",
		"namespace": ada.namespace, "settings_stored": true, "person": nil, "settings": []string{}}))
	page.post(t, "/api/markdown", `{"texts": ["**a**"]}`, "Cookie", cookie, "Origin", ada.url).wants(t, 200).says(t,
		`{"html": ["<p><strong>a</strong></p>\n"]}`)
	page.post(t, "/api/markdown", `{"texts": "a"}`, "Cookie", cookie, "Origin", ada.url).wants(t, 422)
	// A link works only one time, even if it is used concurrently.
	page.post(t, "/api/signin/link", "", "Origin", ada.url).wants(t, 401)
	link := ada.post(t, "/api/signin/link", "").wants(t, 200).lacks(t, ada.key).field(t, "path").(string)
	path, code, _ := strings.Cut(link, "#code=")
	if path != "/signin" || code == "" {
		t.Errorf("the link is %s", link)
	}
	page.post(t, "/api/signin", jsonOf(t, map[string]string{"code": code}), "Origin", ada.url).wants(t, 409).says(t,
		jsonOf(t, map[string]string{"detail": "Confirm that you want to sign in as the user of this link", "user": "ada",
			"namespace": ada.namespace}))
	byCode := jsonOf(t, map[string]any{"code": code, "replace": true})
	page.post(t, "/api/signin", byCode).wants(t, 403)
	page.post(t, "/api/signin", `{"code": "x", "replace": true}`, "Origin", ada.url).wants(t, 401)
	codes := make(chan int, 6)
	for range cap(codes) {
		go func() { codes <- page.post(t, "/api/signin", byCode, "Origin", ada.url).code }()
	}
	signedInWith := 0
	for range cap(codes) {
		if got := <-codes; got == 200 {
			signedInWith++
		} else if got != 401 {
			t.Errorf("answered %d", got)
		}
	}
	if signedInWith != 1 {
		t.Errorf("the link signed in %d times", signedInWith)
	}
	page.do(t, "GET", "/api/conversations", "", "Cookie", "parley="+code).wants(t, 401)

	out := page.post(t, "/api/signout", "", "Cookie", cookie, "Origin", ada.url).wants(t, 200)
	if !strings.Contains(out.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("signed out with %s", out.header.Get("Set-Cookie"))
	}

	// After the sign-out, a copy of the cookie is not valid either.
	await(t, func() error { return codeOf(page.do(t, "GET", "/api/conversations", "", "Cookie", cookie), 401) })
	signedIn = page.post(t, "/api/signin", key, "Origin", ada.url).wants(t, 200)
	cookie, _, _ = strings.Cut(signedIn.header.Get("Set-Cookie"), ";")
	page.do(t, "GET", "/api/conversations", "", "Cookie", cookie).wants(t, 200)

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace,
		Name: v1alpha1.SessionKeySecretName(ada.name)}}
	if err := suite.Client.Delete(t.Context(), secret); err != nil { // the operator creates a new one
		t.Fatal(err)
	}
	await(t, func() error { return codeOf(page.do(t, "GET", "/api/conversations", "", "Cookie", cookie), 401) })
}
