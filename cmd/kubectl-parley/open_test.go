package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// newLinkFacade returns a facade that issues sign-in links for the key.
func newLinkFacade(t *testing.T, key string) *httptest.Server {
	t.Helper()
	facade := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.String(), key) { // a proxy may log it
			t.Errorf("the key is in the URL %s", r.URL)
		}
		if r.Method != http.MethodPost || r.URL.Path != "/api/signin/link" || r.Header.Get(rest.KeyHeader) != key {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"path": "/signin#code=once", "expires_at": "2026-01-01T00:00:00Z"}`)
	}))
	t.Cleanup(facade.Close)
	return facade
}

func keyOfAda(t *testing.T, namespace string) (key string) {
	t.Helper()
	testenv.Await(t, func() error {
		stdout, stderr, err := run(t, namespace, "key", "ada")
		key = strings.TrimSpace(stdout)
		if err != nil {
			return errors.New(stderr)
		}
		return nil
	})
	return key
}

func TestOpenPrintsALinkThatDoesNotContainTheKey(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	facade := newLinkFacade(t, key)
	create(t, conversation(ns, "c"))
	for want, args := range map[string][]string{
		"/signin#code=once":        {"open", "--settings=ada", "--facade=" + facade.URL},
		"/signin#code=once&then=c": {"open", "c", "--facade=" + facade.URL + "/"},
	} {
		stdout, stderr, err := run(t, ns, args...)
		if err != nil || strings.TrimSpace(stdout) != facade.URL+want || strings.Contains(stdout+stderr, key) {
			t.Errorf("%v: %v, output %s%s", args, err, stdout, stderr)
		}
	}
	if _, _, err := run(t, ns, "open", "missing", "--facade="+facade.URL); err == nil {
		t.Error("a missing conversation was opened")
	}
	if _, _, err := run(t, ns, "open", "--settings=eve", "--facade="+facade.URL); err == nil {
		t.Error("a missing user was signed in")
	}
}

func TestOpenStartsABrowser(t *testing.T) {
	ns := startOperator(t)
	facade := newLinkFacade(t, keyOfAda(t, ns))
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	script := "#!/bin/sh\necho \"$1\" > " + seen + ".new && mv " + seen + ".new " + seen + "\n"
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	if _, stderr, err := run(t, ns, "open", "--settings=ada", "--browser", "--facade="+facade.URL); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	testenv.Await(t, func() error {
		address, err := os.ReadFile(seen)
		if err == nil && strings.TrimSpace(string(address)) != facade.URL+"/signin#code=once" {
			t.Errorf("the browser shows %s", address)
		}
		return err
	})
	t.Setenv("PATH", dir+"/nothing")
	stdout, stderr, err := run(t, ns, "open", "--settings=ada", "--browser", "--facade="+facade.URL)
	if err != nil || !strings.Contains(stdout, "#code=once") || !strings.Contains(stderr, "open the link yourself") {
		t.Errorf("without a browser: %v, %s%s", err, stdout, stderr)
	}
}

func facadePod(t *testing.T, k *kubelet, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: name, Labels: map[string]string{
			"app.kubernetes.io/name": v1alpha1.ManagedBy, v1alpha1.LabelComponent: "facade",
		}},
		Spec: corev1.PodSpec{NodeName: k.node, Containers: []corev1.Container{{Name: "facade", Image: "x"}}},
	}
	create(t, pod)
	pod.Status.Phase = corev1.PodRunning
	if err := env.Client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestOpenForwardsAPortToTheFacade(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	facade := newLinkFacade(t, keyOfAda(t, ns))
	k := newKubelet(t, ns)
	k.backend = facade.Listener.Addr().String()
	if _, stderr, err := run(t, ns, "open", "--settings=ada", "--facade-namespace="+ns); err == nil ||
		!strings.Contains(err.Error(), "no facade runs in namespace ") || !strings.Contains(err.Error(), "$PARLEY_FACADE") {
		t.Errorf("without a facade: %v, %s", err, stderr)
	}
	facadePod(t, k, "facade")
	opened := runAsync(t, kubeconfig, ns, "open", "--settings=ada", "--facade-namespace="+ns)
	testenv.Await(t, func() error {
		if out := opened.out.String(); !strings.HasPrefix(out, "http://127.0.0.1:") || !strings.HasSuffix(out,
			"/signin#code=once\n") {
			return errors.New(out + opened.errOut.String())
		}
		return nil
	})
	opened.stop()
	if err := opened.wait(t); err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
}
