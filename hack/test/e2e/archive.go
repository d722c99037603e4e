package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// archiveName is what the objects of the archive are called.
const archiveName = "parley-archive"

// whatSessionsLeave: it is read when their pods are gone, also from an archive that was replaced
// meanwhile.
func whatSessionsLeave(t *t) {
	u := t.newUser()
	_, baseURL := t.scriptedModel(scriptedmodel.Step{Text: "It is done."})
	c := t.converse(u, rest.Settings{
		LLMModel: rest.Set("scripted/model"), LLMAPIKey: rest.NewKey(secretValue()), LLMBaseURL: rest.Set(baseURL),
	}, "left", "Do it.")
	live := t.awaitEvents(u, "It is done.")

	t.post(u, "/api/conversations/left/stop", struct{}{}, &rest.ConversationResponse{})
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	t.gone(&corev1.Pod{}, u.namespace, v1alpha1.SessionName(c.Name))
	_, err := t.kubectl(t.ctx, "rollout", "restart", "deployment", archiveName, "--namespace="+parleyNamespace)
	t.must(err)
	t.must(t.awaitParley(t.ctx))
	kept := t.awaitEvents(u, "It is done.")
	for i, event := range live {
		if i >= len(kept) || string(kept[i]) != string(event) {
			t.fatalf("of %d events %d are kept; event %d was %s", len(live), len(kept), i, event)
		}
	}
	t.notef("%d events are read when the pod is gone", len(kept))
}

// awaitEvents of the conversation, until one has a text.
func (t *t) awaitEvents(u *user, text string) (events []json.RawMessage) {
	t.eventually(func(context.Context) error {
		var all struct{ Trajectory []json.RawMessage }
		t.call(u, http.MethodGet, "/api/conversations/left/trajectory", nil, &all, http.StatusUnauthorized,
			http.StatusServiceUnavailable)
		for _, event := range all.Trajectory {
			if strings.Contains(string(event), text) {
				events = all.Trajectory
				return nil
			}
		}
		return fmt.Errorf("there are %d events, and none says %q", len(all.Trajectory), text)
	})
	return events
}
