package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAUserWithTooManyConversationsLearnsTheLimit(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "one-" + ada.namespace},
		Spec: v1alpha1.SessionClassSpec{MaxConversationsPerUser: ptr.To[int32](1)}}
	create(t, class)
	t.Cleanup(func() { _ = suite.Client.Delete(t.Context(), class) })
	await(t, func() error { // the operator may write the status in between
		settings := ada.settings(t)
		settings.Spec.SessionClassName = &class.Name
		return suite.Client.Update(t.Context(), settings)
	})
	const first = `{"conversation_id": "first", "initial_user_msg": "hello"}`
	ada.post(t, "/api/conversations", first).wants(t, 200)
	var refused reply
	await(t, func() error { // until the webhook's cache has the class, the settings and the conversation
		if refused = ada.post(t, "/api/conversations", `{"initial_user_msg": "more"}`); refused.code != http.StatusForbidden {
			return fmt.Errorf("a second conversation: %d %s", refused.code, refused.body)
		}
		return nil
	})
	if !strings.Contains(refused.body, "SessionClass "+class.Name+" allows 1 Conversations per user "+
		"(maxConversationsPerUser)") {
		t.Errorf("the refusal is %s", refused.body)
	}
	ada.post(t, "/api/conversations", first).wants(t, 200) // joins the first conversation
}
