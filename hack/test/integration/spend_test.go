package integration_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// limit gives a person a class with spending limits. It also creates a price of limited/model.
func (p *person) limit(t *testing.T, limits v1alpha1.SpendingLimits) {
	t.Helper()
	prices := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "parley-system", Name: v1alpha1.ModelsName},
		Data: map[string]string{session.ModelOverrides: "limited/model: {input: 3, output: 15, maxOutput: 1000}"}}
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "spend-" + p.namespace},
		Spec: v1alpha1.SessionClassSpec{Spend: &limits}}
	for _, object := range []client.Object{prices, class} {
		if err := client.IgnoreAlreadyExists(suite.Client.Create(t.Context(), object)); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Await(t, func() error {
		settings := &v1alpha1.UserSettings{}
		err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: p.name}, settings)
		if err == nil {
			settings.Spec.SessionClassName = &class.Name
			err = suite.Client.Update(t.Context(), settings)
		}
		return err
	})
}

// The model ignores the limit of its output, so the first call costs more than the spending limit.
// The next call is refused.
func TestASpendingLimitEndsTheTurn(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, map[string]any{"llm_model": "limited/model"},
		scriptedmodel.Step{Text: "One.", Usage: &scriptedmodel.Usage{Input: 1000, Output: 20000}}, says("Two."))
	bob := newPerson(t, nil)
	ada.limit(t, v1alpha1.SpendingLimits{PerUser: &v1alpha1.SpendingLimit{Day: ptr.To("0.25"), Month: ptr.To("5")},
		PerNamespace: &v1alpha1.SpendingLimit{Month: ptr.To("100")}, NoticePercent: ptr.To[int32](1)})
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.say(t, "talk", "more")
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonTurnFailed,
		"spending limit of $0.25 per day for this user is reached: $0.31 spent or reserved; resets ")
	if got := len(ada.model.Requests()); got != 1 {
		t.Errorf("the model got %d calls", got)
	}
	all := fmt.Sprint(ada.events(t, "talk"))
	if !strings.Contains(all, "spending limit of $0.25 per day for this user: ") {
		t.Errorf("no notice says that the limit is near: %s", all)
	}

	const cost = "0.303"
	var usage rest.Usage
	testenv.Await(t, func() error {
		usage = decode[rest.Usage](t, ada.wants(t, 200, "GET", "/api/usage", ""))
		if usage.Spent != cost || usage.Reserved != "0" {
			return fmt.Errorf("the costs are %+v", usage)
		}
		return nil
	})
	if len(usage.Lines) != 1 || usage.Lines[0].Cost != cost || usage.Lines[0].Calls != 1 ||
		usage.Lines[0].Namespace != ada.namespace || usage.Lines[0].OutputTokens != 20000 {
		t.Errorf("the lines are %+v", usage.Lines)
	}
	limits := ""
	for _, l := range usage.Limits {
		limits += fmt.Sprintf("%s %s %s used %s; ", l.Scope, l.Period, l.Limit, ptr.Deref(l.Used, "unknown"))
	}
	if limits != "user day 0.25 used 0.303; user month 5 used 0.303; namespace month 100 used unknown; " {
		t.Errorf("the limits are %s", limits)
	}
	if none := decode[rest.Usage](t, bob.wants(t, 200, "GET", "/api/usage", "")); none.Spent != "0" ||
		len(none.Lines)+len(none.Limits) != 0 {
		t.Errorf("another user sees %+v", none)
	}
	old := decode[rest.Usage](t, ada.wants(t, 200, "GET", "/api/usage?month=2020-01", ""))
	if old.Spent != "0" || len(old.Limits) != 0 || old.Month != "2020-01" {
		t.Errorf("another month has %+v", old)
	}
	ada.wants(t, 422, "GET", "/api/usage?month=now", "")
	out, err := ada.plugin(t, nil, "usage", "--settings", "ada")
	for _, line := range []string{": $0.31 spent\n", "\nLimit per day and user: $0.25, $0.31 used, resets ",
		"\nLimit per month and namespace: $100.00, resets "} {
		if err != nil || !strings.Contains(out, line) {
			t.Errorf("%v: %q is missing in %s", err, line, out)
		}
	}
}
