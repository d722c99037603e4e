package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// usage returns the usage metrics: input tokens, output tokens and cost.
func usage(t *testing.T) (counted [3]float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch {
			case f.GetName() == "parley_session_cost_dollars_total":
				counted[2] = m.GetCounter().GetValue()
			case f.GetName() == "parley_session_tokens_total" && m.GetLabel()[0].GetValue() == "input":
				counted[0] = m.GetCounter().GetValue()
			case f.GetName() == "parley_session_tokens_total":
				counted[1] = m.GetCounter().GetValue()
			}
		}
	}
	return counted
}

const endWithResult = `{"reason":"Completed","result":{"summary":"I fixed it","commit":"5f1c0de5f1c0de",` +
	`"branch":"fix","filesChanged":2,` +
	`"inputTokens":1000,"outputTokens":50,"cost":"0.125"}}`

func TestTheResultIsKeptUntilTheSessionEndsAgain(t *testing.T) {
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	consents, silent := userSettings(ns, "ada"), userSettings(ns, "bob")
	consents.Spec.UserConsentsToAnalytics = ptr.To(true)
	create(t, consents, silent)
	before := usage(t)
	k := kubelet{t, ns, "c"}
	conv := withTask(ns, "c").With(func(s *v1alpha1.ConversationSpec) { s.OneShot = true }).Obj()
	create(t, conv)
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.end(endWithResult)
	want := v1alpha1.ConversationResult{
		Summary: "I fixed it", Commit: "5f1c0de5f1c0de", Branch: "fix", FilesChanged: 2, InputTokens: 1000, OutputTokens: 50,
		Cost: "0.125",
	}
	if got := awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted).Status.Result; got == nil ||
		*got != want {
		t.Errorf("the result is %+v, want %+v", got, want)
	}
	// The usage was counted when the session ended. Another reconcile does not count it again.
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.TTLAfterStopped = &metav1.Duration{Duration: time.Hour} })
	await(t, func() error {
		if c := getConversation(t, ns, "c"); c.Status.ObservedGeneration != c.Generation {
			return errors.New("the change is not reconciled yet")
		}
		return nil
	})
	if got := usage(t); got != [3]float64{before[0] + 1000, before[1] + 50, before[2] + 0.125} {
		t.Errorf("counted %v after %v", got, before)
	}

	first := k.pod()
	change(t, conv, func(c *v1alpha1.Conversation) {
		c.Spec.RestartAt = ptr.To(metav1.NewTime(time.Now().Add(-time.Second)))
	})
	k.awaitReplacement(first)
	k.start()
	if got := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning).Status.Result; got == nil ||
		*got != want {
		t.Errorf("after a restart, the result is %+v", got)
	}
	k.end(strings.NewReplacer("1000", "1500", "50,", "80,", "0.125", "0.25").Replace(endWithResult))
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonCompleted)
	await(t, func() error { // the usage of a conversation is cumulative
		if got := usage(t); got != [3]float64{before[0] + 1500, before[1] + 80, before[2] + 0.25} {
			return fmt.Errorf("counted %v after %v", got, before)
		}
		return nil
	})

	first = k.pod()
	change(t, conv, func(c *v1alpha1.Conversation) {
		c.Spec.RestartAt = ptr.To(metav1.NewTime(time.Now().Add(-time.Minute)))
	})
	k.awaitReplacement(first)
	k.start()
	awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	k.end("bye " + endWithResult)
	await(t, func() error {
		if c := getConversation(t, ns, "c"); c.Status.State != v1alpha1.StateStopped || c.Status.Result != nil {
			return fmt.Errorf("after an end without a result: %s %+v", c.Status.State, c.Status.Result)
		}
		return nil
	})

	create(t, withTask(ns, "d").With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "bob" }).Obj())
	k = kubelet{t, ns, "d"}
	k.start()
	k.end(strings.Replace(endWithResult, "Completed", "Failed", 1))
	if got := awaitState(t, ns, "d", v1alpha1.StateStopped, v1alpha1.ReasonFailed).Status.Result; got == nil ||
		*got != want {
		t.Errorf("the failed session has the result %+v", got)
	}
	if got := usage(t); got != [3]float64{before[0] + 1500, before[1] + 80, before[2] + 0.25} {
		t.Errorf("counted %v after %v, without the user's consent", got, before)
	}
}
