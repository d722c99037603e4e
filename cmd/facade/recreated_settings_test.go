package main

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// If a UserSettings object is deleted and created again for another user, the new user must neither
// see nor control the conversations of the former user.
func TestRecreatedUserSettingsDoNotShowEarlierConversations(t *testing.T) {
	t.Parallel()
	former := newcomer(t)
	former.post(t, "/api/conversations", `{"conversation_id": "talk", "repository": "a/b", `+
		`"initial_user_msg": "the former user's plan"}`).wants(t, 200)
	key := client.ObjectKey{Namespace: former.namespace, Name: "talk"}
	conversation := &v1alpha1.Conversation{}
	await(t, func() error {
		if err := suite.Client.Get(t.Context(), key, conversation); err != nil {
			return err
		}
		if conversation.Status.SettingsUID == "" {
			return errors.New("the owner is not recorded yet")
		}
		return nil
	})
	// No garbage collector runs here, so the test also deletes the Secret of the settings.
	for _, object := range []client.Object{former.settings(t), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: former.namespace, Name: v1alpha1.SessionKeySecretName(former.name)}}} {
		if err := suite.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() error { return codeOf(former.get(t, "/api/conversations"), 401) })
	next := newPersonIn(t, former.namespace, former.name)
	next.post(t, "/api/settings", `{"llm_model": "ollama/small"}`).wants(t, 200)
	for _, path := range []string{"/api/conversations", "/api/conversations/talk", "/api/conversations/talk/request",
		"/api/conversations/talk/events"} {
		if reply := next.get(t, path); strings.Contains(reply.body, "talk") || strings.Contains(reply.body, "plan") {
			t.Errorf("GET %s answers %d %s", path, reply.code, reply.body)
		}
	}
	for _, call := range []struct {
		method, path, body string
		code               int
	}{
		{"POST", "/api/conversations/talk/start", "", 404},
		{"POST", "/api/conversations/talk/stop", "", 404},
		{"PATCH", "/api/conversations/talk", `{"title": "mine"}`, 404},
		{"DELETE", "/api/conversations/talk", "", 200}, // false, as for an unknown conversation
		{"POST", "/api/conversations", `{"conversation_id": "talk"}`, 409},
	} {
		next.do(t, call.method, call.path, call.body).wants(t, call.code)
	}
	after := &v1alpha1.Conversation{}
	if err := suite.Client.Get(t.Context(), key, after); err != nil || after.UID != conversation.UID ||
		after.Generation != conversation.Generation || after.DeletionTimestamp != nil {
		t.Errorf("the conversation of the former user changed: %+v, %v", after.ObjectMeta, err)
	}
}
