package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestOnlyTheKeyCommandPrintsAKey(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	k := newKubelet(t, ns)
	key, stderr, err := run(t, ns, "key", "ada")
	if err != nil || len(strings.TrimSpace(key)) < 40 || strings.Count(key, "\n") != 1 {
		t.Fatalf("key: %v, %d bytes", err, len(key))
	}
	key = strings.TrimSpace(key)
	if strings.Contains(stderr, key) {
		t.Error("the key is on standard error")
	}
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "ada-session-key"}, secret); err != nil ||
		string(secret.Data["key"]) != key {
		t.Fatalf("the Secret holds another key: %v", err)
	}

	create(t, conversation(ns, "c"))
	k.start("c")
	awaitState(t, ns, "c", "RUNNING", "Running")
	session := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "c-session"}, session); err != nil {
		t.Fatal(err)
	}
	secrets := []string{key, string(session.Data["session-key"]), string(session.Data["key"])}
	for _, args := range [][]string{{"status"}, {"status", "c"}, {"stop", "c", "--wait=false"},
		{"start", "c", "--wait=false"}, {"logs", "c", "--tail=0"}, {"status", "missing"}, {"key", "missing"}} {
		if args[0] == "logs" {
			close(k.process())
		}
		stdout, stderr, err := run(t, ns, args...)
		for _, secret := range secrets {
			if secret != "" && strings.Contains(fmt.Sprint(stdout, stderr, err), secret) {
				t.Errorf("%v prints a key", args)
			}
		}
	}
}

func TestTheRotateFlagCreatesANewSessionKey(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	before, _, err := run(t, ns, "key", "ada")
	if err != nil {
		t.Fatal(err)
	}
	after, _, err := run(t, ns, "key", "ada", "--rotate")
	if err != nil || after == before || len(after) != len(before) {
		t.Fatalf("rotate: %v; the same key: %t", err, after == before)
	}
	if again, _, err := run(t, ns, "key", "ada"); err != nil || again != after {
		t.Errorf("the key changed again: %v", err)
	}
	own := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own"}}
	own.Spec.SessionKeyRef = &v1alpha1.SecretKeyRef{Name: "mine", Key: "key"}
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mine"},
		StringData: map[string]string{"key": strings.Repeat("k3y-", 16)}}, own)
	if got, _, err := run(t, ns, "key", "own"); err != nil || strings.TrimSpace(got) != strings.Repeat("k3y-", 16) {
		t.Errorf("key of spec.sessionKeyRef: %q, %v", got, err)
	}
	newline := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "newline"}}
	newline.Spec.SessionKeyRef = &v1alpha1.SecretKeyRef{Name: "from-file", Key: "key"}
	create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "from-file"},
		StringData: map[string]string{"key": strings.Repeat("f1l-", 16) + "\n"}}, newline)
	if got, _, err := run(t, ns, "key", "newline"); err != nil || got != strings.Repeat("f1l-", 16)+"\n" {
		t.Errorf("key that ends with a newline: %q, %v", got, err)
	}
	facade := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(rest.KeyHeader) != strings.Repeat("f1l-", 16) {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(facade.Close)
	if _, _, err := run(t, ns, "usage", "--settings=newline", "--facade="+facade.URL); err != nil {
		t.Errorf("a request with a key that ends with a newline: %v", err)
	}
	if _, _, err := run(t, ns, "key", "own", "--rotate"); err == nil || !strings.Contains(err.Error(), "Secret mine") {
		t.Errorf("rotate the key of spec.sessionKeyRef: %v", err)
	}
}
