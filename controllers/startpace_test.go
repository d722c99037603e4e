package controllers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestSessionsOfAUserWithLargeSecretsStartOneAfterAnother(t *testing.T) {
	t.Parallel()
	const secrets, sessions = 9, 8
	ns := env.Namespace(t, nil)
	settings := userSettings(ns, "ada")
	settings.Spec.SecretsStore = &v1alpha1.SecretsStore{}
	for n := range secrets {
		name := fmt.Sprint("large-", n)
		create(t, secretWith(ns, name, strings.Repeat("x", 100_000)))
		settings.Spec.SecretsStore.CustomSecrets = append(settings.Spec.SecretsStore.CustomSecrets,
			v1alpha1.CustomSecret{Name: fmt.Sprint("LARGE_", n), SecretRef: *ref(name)})
	}
	create(t, settings, userSettings(ns, "eve"))
	p := newTimedProcess(t, ns, managerClient(t))
	started := func() int { return len(runningPods(t, ns)) }
	var wait time.Duration
	for n := range sessions {
		name := fmt.Sprint("large-", n)
		create(t, makeConversation(ns, name).Obj())
		wait = p.reconcile(name).RequeueAfter
	}
	atOnce := started()
	if atOnce < 2 || atOnce == sessions {
		t.Errorf("%d of %d sessions started at once", atOnce, sessions)
	}
	last := fmt.Sprint("large-", sessions-1)
	status := getConversation(t, ns, last).Status
	if status.State != v1alpha1.StateStarting || status.Reason != v1alpha1.ReasonScheduling ||
		!strings.Contains(status.Message, "one after another") {
		t.Errorf("a waiting session is %s, %s: %s", status.State, status.Reason, status.Message)
	}
	create(t, makeConversation(ns, "of-eve").With(func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "eve" }).Obj())
	p.reconcile("of-eve")
	if n := started(); n != atOnce+1 {
		t.Errorf("%d sessions run, so another user waits", n)
	}
	p.advance(wait)
	p.reconcile(last)
	if n := started(); n != atOnce+2 {
		t.Errorf("%d sessions run after %s", n, wait)
	}
	before := getConversation(t, ns, "large-6").ResourceVersion
	p.reconcile("large-6")
	if after := getConversation(t, ns, "large-6").ResourceVersion; after != before {
		t.Error("a session that still waits was written again")
	}
}

func TestManyUsersOfANamespaceWaitWithLargeSecrets(t *testing.T) {
	now, pace, started := time.Now(), startPace{}, 0
	for n := range 100 {
		settle, wait := pace.reserve(types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(n)}, now)
		if wait == 0 {
			started++
			settle(1 << 20)
		}
	}
	if started < 10 || started > 20 {
		t.Errorf("%d users started a session of 1 MiB at once", started)
	}
	if _, wait := pace.reserve(types.NamespacedName{Namespace: "other", Name: "0"}, now); wait > 0 {
		t.Errorf("another namespace waits for %s", wait)
	}
}

func TestAUserMayStartManySmallSessionsAtOnce(t *testing.T) {
	now, pace, user := time.Now(), startPace{}, types.NamespacedName{Namespace: "ns", Name: "ada"}
	for n := range 500 {
		settle, wait := pace.reserve(user, now)
		if wait > 0 {
			t.Fatalf("session %d waits for %s", n, wait)
		}
		settle(8 << 10)
	}
}
