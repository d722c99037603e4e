package main

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestEachRestartRequestHasANewTime(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	at := func(seconds int) *metav1.Time { return ptr.To(metav1.Date(2026, 1, 2, 3, 4, seconds, 0, time.UTC)) }
	for _, test := range []struct{ requested, observed, want *metav1.Time }{
		{nil, nil, at(5)},
		{at(4), at(4), at(5)},
		{at(5), at(5), at(4)},
		{at(4), at(5), at(3)},
		{at(50), nil, at(5)},
	} {
		c := conversation("ns", "c")
		c.Spec.RestartAt, c.Status.RestartedAt = test.requested, test.observed
		if got := c.NextRestart(now); !got.Equal(test.want) {
			t.Errorf("after %v and %v the next restart is %v, want %v", test.requested, test.observed, got, test.want)
		}
	}
}

// The operator restarts a session when the operator's clock reaches spec.restartAt. If this time is
// in the future, the command must say why the session does not start yet.
func TestTheStartCommandReportsARestartTimeInTheFuture(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	c := conversation(ns, "c")
	c.Spec.RestartAt = ptr.To(metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second)))
	create(t, c)
	c.Status.State, c.Status.Reason, c.Status.ObservedGeneration = "STOPPED", "Failed", c.Generation+1
	if err := env.Client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	_, stderr, err := run(t, ns, "start", "c", "--timeout=1s")
	if err == nil || !strings.Contains(stderr, "when the operator's clock shows") {
		t.Errorf("%v, %s", err, stderr)
	}
}

func TestFlagsOfTheStartCommandChooseTheModelAndTheAgent(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	if _, _, err := run(t, ns, "start", "c", "-m", "hello", "--model", "openai/gpt-5", "--agent", "coder",
		"--wait=false"); err != nil {
		t.Fatal(err)
	}
	c := conversation(ns, "c")
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
		t.Fatal(err)
	}
	if ptr.Deref(c.Spec.LLMModel, "") != "openai/gpt-5" || ptr.Deref(c.Spec.Agent, "") != "coder" {
		t.Errorf("the spec is %+v", c.Spec)
	}
}
