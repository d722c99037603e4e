package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/rest"
)

func TestRedirectTargetsDoNotReceiveTheKey(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the redirect target received %s, with a key: %t", r.URL.Path, r.Header.Get(rest.KeyHeader) != "")
	}))
	t.Cleanup(elsewhere.Close)
	for _, code := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/login?state=private", code)
		}))
		t.Cleanup(proxy.Close)
		for _, command := range []string{"chat", "diff", "open"} {
			_, stderr, err := run(t, ns, command, "c", "--facade", proxy.URL)
			if err == nil || !strings.Contains(err.Error(), "redirects to "+elsewhere.URL+"/login,") ||
				strings.Contains(err.Error()+stderr, "private") {
				t.Errorf("%s, with %d: %v, %s", command, code, err, stderr)
			}
		}
	}
}

func TestThePluginPrintsTheFacadeURLThatItTakesFromTheEnvironment(t *testing.T) {
	ns := startOperator(t)
	facade := newLinkFacade(t, keyOfAda(t, ns))
	create(t, conversation(ns, "c"))
	named := "using the facade of $PARLEY_FACADE: " + facade.URL
	if _, stderr, err := run(t, ns, "open", "c", "--facade="+facade.URL); err != nil || strings.Contains(stderr,
		"PARLEY_FACADE") {
		t.Errorf("with the flag: %v, %s", err, stderr)
	}
	t.Setenv("PARLEY_FACADE", facade.URL)
	if _, stderr, err := run(t, ns, "open", "c"); err != nil || !strings.Contains(stderr, named) {
		t.Errorf("with the environment: %v, %s", err, stderr)
	}
	if _, stderr, err := run(t, ns, "chat", "c"); err == nil || !strings.Contains(stderr, named) {
		t.Errorf("facade without conversations: %v, %s", err, stderr)
	}
	t.Setenv("PARLEY_KEY", "another-key")
	if _, _, err := run(t, ns, "open", "--settings=ada"); err == nil || !strings.Contains(err.Error(), "$PARLEY_KEY") ||
		strings.Contains(err.Error(), "another-key") {
		t.Errorf("--settings with $PARLEY_KEY: %v", err)
	}
}
