package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parley-dev/parley/hack/test/testenv"
)

func TestTheForwardCommandConnectsToTheSession(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	k := newKubelet(t, ns)
	session := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "the session answers "+r.URL.Path)
	}))
	t.Cleanup(session.Close)
	k.backend = session.Listener.Addr().String()
	create(t, conversation(ns, "c"))
	opened := runAsync(t, kubeconfig, ns, "forward", "c")
	k.start("c")
	testenv.Await(t, func() error {
		if !strings.HasPrefix(opened.out.String(), "http://127.0.0.1:") {
			return errors.New(opened.errOut.String())
		}
		return nil
	})
	url := strings.TrimSpace(opened.out.String())
	testenv.Await(t, func() error {
		response, err := http.Get(url + "/alive")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || string(body) != "the session answers /alive" {
			return errors.New("answer " + string(body))
		}
		return nil
	})
	opened.stop()
	if err := opened.wait(t); err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
	if _, _, err := run(t, ns, "stop", "c", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	awaitState(t, ns, "c", "STOPPED", "Suspended")
	if _, _, err := run(t, ns, "forward", "c"); err == nil || !strings.Contains(err.Error(), "Suspended") {
		t.Errorf("stopped session: %v", err)
	}
}

func TestTheForwardCommandFailsForAMissingSession(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	if _, _, err := run(t, ns, "forward", "nosuch"); err == nil || !strings.HasSuffix(err.Error(), `"nosuch" not found`) {
		t.Errorf("got %v", err)
	}
}

func TestTheForwardCommandReportsANodeWithoutPortForwarding(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	k := newKubelet(t, ns)
	k.backend = noPortForward
	create(t, conversation(ns, "c"))
	k.start("c")
	awaitState(t, ns, "c", "RUNNING", "Running")
	if _, _, err := run(t, ns, "forward", "c"); err == nil || !strings.Contains(err.Error(),
		"the node of pod c-session does not support port forwarding") {
		t.Errorf("got %v", err)
	}
}

func TestAnInvalidFacadeURLIsReported(t *testing.T) {
	t.Setenv("PARLEY_KEY", "k")
	ns := env.Namespace(t, nil)
	create(t, conversation(ns, "c"))
	for named, want := range map[string]string{
		"127.0.0.1:3000":          "write http://127.0.0.1:3000",
		"localhost:3000/":         "write http://localhost:3000",
		"example.com":             "write http://example.com",
		"ftp://example.com":       "write http://HOST:PORT",
		"ada:hunter2@example.com": "write http://HOST:PORT",
		"http://":                 "write http://HOST:PORT",
	} {
		for _, command := range [][]string{{"chat", "c"}, {"open"}} {
			_, _, err := run(t, ns, append(command, "--facade="+named)...)
			if err == nil || !strings.HasSuffix(err.Error(), "--facade or $PARLEY_FACADE is not a URL: "+want) {
				t.Errorf("%v with %s: %v", command, named, err)
			}
		}
	}
}
