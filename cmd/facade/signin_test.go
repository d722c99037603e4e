package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Who is signed in to the page has no key to show, only the cookie.
func TestACookieStandsForTheKeyUntilThatIsAnother(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, "ada")
	page := &person{url: ada.url}
	page.get(t, "/api/session").wants(t, 200).says(t, `{"user": null, "namespace": null, "settings_stored": false}`)
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
	page.do(t, "GET", "/api/session", "", "Cookie", cookie).wants(t, 200).says(t, jsonOf(t, map[string]any{"user": "ada", "namespace": ada.namespace, "settings_stored": true}))
	page.post(t, "/api/markdown", `{"texts": ["**a**"]}`, "Cookie", cookie, "Origin", ada.url).wants(t, 200).says(t, `{"html": ["<p><strong>a</strong></p>\n"]}`)
	page.post(t, "/api/markdown", `{"texts": "a"}`, "Cookie", cookie, "Origin", ada.url).wants(t, 422)
	out := page.post(t, "/api/signout", "", "Cookie", cookie, "Origin", ada.url).wants(t, 200)
	if !strings.Contains(out.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("signed out with %s", out.header.Get("Set-Cookie"))
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: v1alpha1.SessionKeySecretName(ada.name)}}
	if err := suite.Client.Delete(t.Context(), secret); err != nil { // another one is made
		t.Fatal(err)
	}
	await(t, func() error { return codeOf(page.do(t, "GET", "/api/conversations", "", "Cookie", cookie), 401) })
}
