package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// A killed session cannot report the end of its turn.
func TestChatEndsWhenTheSessionStops(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	for _, in := range []string{"", "hi\n"} {
		t.Run("input: "+in, func(t *testing.T) {
			t.Parallel()
			f := newFakeFacade(t, key, succeeds)
			f.add(turnBegins(f.add(session.UserMessage("earlier", nil))))
			f.stopped.Store(true)
			r := runAsyncWith(t, strings.NewReader(in), kubeconfig, ns, "chat", "c", "--facade", f.URL)
			if err := r.wait(t); err == nil || err.Error() != "c is not running: Failed: out of memory" ||
				strings.Count(r.out.String(), "> earlier") != 1 {
				t.Errorf("chat returned %v, after %s%s", err, r.out.String(), r.errOut.String())
			}
		})
	}
}

func TestAMessageInAChatWakesTheSession(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	f.add(session.UserMessage("earlier", nil), session.StateChange(session.StateAwaiting, ""))
	f.stopped.Store(true)
	f.wakes = true
	in, typed := io.Pipe()
	r := runAsyncWith(t, in, kubeconfig, ns, "chat", "c", "--facade", f.URL)
	shows := func(out *testenv.Log, text string) {
		t.Helper()
		testenv.Await(t, func() error {
			if !strings.Contains(out.String(), text) {
				return fmt.Errorf("stdout %s, stderr %s", r.out.String(), r.errOut.String())
			}
			return nil
		})
	}
	shows(&r.out, "! stopped (Failed: out of memory); send a message to resume")
	if _, err := io.WriteString(typed, "go on\n"); err != nil {
		t.Fatal(err)
	}
	shows(&r.errOut, "waking up")
	shows(&r.out, "> go on")
	_ = typed.Close()
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
}

func TestChatReconnectsToAnotherFacadePod(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newFakeFacade(t, key, succeeds)
	k := newKubelet(t, ns)
	k.backend = f.Listener.Addr().String()
	old := facadePod(t, k, "old")
	f.add(turnBegins(f.add(session.UserMessage("earlier", nil))))
	r := runAsyncWith(t, strings.NewReader(""), kubeconfig, ns, "chat", "c", "--facade-namespace", ns)
	shows := func(out *testenv.Log, text string) {
		t.Helper()
		testenv.Await(t, func() error {
			if !strings.Contains(out.String(), text) {
				return fmt.Errorf("stdout %s, stderr %s", r.out.String(), r.errOut.String())
			}
			return nil
		})
	}
	shows(&r.out, "> earlier")
	if err := env.Client.Delete(t.Context(), old, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	k.dropConnections()
	shows(&r.errOut, "connection lost")
	f.add(runCall("1", "meanwhile"))
	facadePod(t, k, "new")
	shows(&r.out, "$ meanwhile")
	shows(&r.errOut, "reconnected")
	f.add(session.StateChange(session.StateAwaiting, ""))
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
}

// The session is stopped, and there is no archive. The command chat can read the history only after
// the new message has started the session. An earlier message in the history has the same text.
func TestChatThatWakesASessionIgnoresAnEarlierMessageWithTheSameText(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	var f *fakeFacade
	shown := make(chan struct{})
	f = newFakeFacade(t, key, func(m session.Event) []session.Event {
		go func() {
			<-shown
			f.add(turnBegins(m), session.StateChange(session.StateError, "boom"))
		}()
		return nil
	})
	f.add(turnBegins(f.add(session.UserMessage("go on", nil))))
	f.add(session.StateChange(session.StateAwaiting, ""))
	f.stopped.Store(true)
	f.wakes, f.noArchive = true, true
	r := runAsyncWith(t, strings.NewReader("go on\n"), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	testenv.Await(t, func() error {
		if text := r.out.String(); strings.Count(text, "> go on") < 2 {
			return fmt.Errorf("it printed %q; %q", text, r.errOut.String())
		}
		return nil
	})
	close(shown)
	if err := r.wait(t); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("chat returned %v:\n%s%s", err, r.out.String(), r.errOut.String())
	}
}
