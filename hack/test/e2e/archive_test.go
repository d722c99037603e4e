package e2e

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

const archiveName = "parley-archive"

// readFromArchive deletes the pod of a session and restarts the archive. The session's events must
// still be readable.
func readFromArchive(t *t) {
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
	archived := t.awaitEvents(u, "It is done.")
	for i, event := range live {
		if i >= len(archived) || string(archived[i]) != string(event) {
			t.Fatalf("of %d events %d are archived; event %d was %s", len(live), len(archived), i, event)
		}
	}
	t.Logf("%d events are readable after the pod is gone", len(archived))
}

func (t *t) awaitEvents(u *user, text string) (events []json.RawMessage) {
	t.retry(func(context.Context) error {
		var all struct{ Trajectory []json.RawMessage }
		t.call(u, http.MethodGet, "/api/conversations/left/trajectory", nil, &all, http.StatusUnauthorized,
			http.StatusServiceUnavailable)
		for _, event := range all.Trajectory {
			if strings.Contains(string(event), text) {
				events = all.Trajectory
				return nil
			}
		}
		return fmt.Errorf("none of %d events contains %q", len(all.Trajectory), text)
	})
	return events
}
