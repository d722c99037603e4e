package main

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// A session that is killed cannot say that its turn is over.
func TestATalkEndsWithItsSession(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	for _, in := range []string{"", "hi\n"} {
		t.Run("said: "+in, func(t *testing.T) {
			t.Parallel()
			f := newTalk(t, key, succeeds)
			f.add(begins(f.add(session.UserMessage("earlier", nil))))
			f.stopped = true
			r := beginWith(t, strings.NewReader(in), kubeconfig, ns, "chat", "c", "--facade", f.URL)
			if err := r.wait(t); err == nil || err.Error() != "c does not run: Failed: out of memory" ||
				strings.Count(r.out.String(), "> earlier") != 1 {
				t.Errorf("it ends with %v, after %s%s", err, r.out.String(), r.errOut.String())
			}
		})
	}
}

func TestATalkGoesOnThroughAnotherPodOfTheFacade(t *testing.T) {
	t.Parallel()
	ns := operate(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	f := newTalk(t, key, succeeds)
	k := newKubelet(t, ns)
	k.serves = f.Listener.Addr().String()
	old := facadePod(t, k, "old")
	f.add(begins(f.add(session.UserMessage("earlier", nil))))
	r := beginWith(t, strings.NewReader(""), kubeconfig, ns, "chat", "c", "--facade-namespace", ns)
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
	k.lose()
	shows(&r.errOut, "the connection is lost")
	f.add(runs("1", "meanwhile"))
	facadePod(t, k, "new")
	shows(&r.out, "$ meanwhile")
	shows(&r.errOut, "connected again")
	f.add(session.StateChange(session.StateAwaiting, ""))
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
}
