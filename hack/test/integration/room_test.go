package integration_test

import (
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// Each message wakes one of the two sessions. The other session is idle and ends to make room.
func TestTwoSessionsAlternateInOneSlot(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "one-"},
		Spec: v1alpha1.SessionClassSpec{MaxSessionsPerUser: ptr.To[int32](1)}}
	if err := suite.Client.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	ada := newPerson(t, nil, says("Done."), says("Done."), says("Done."), says("Done."), says("Done."), says("Done."))
	testenv.Await(t, func() error {
		settings := &v1alpha1.UserSettings{}
		if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: ada.name},
			settings); err != nil {
			return err
		}
		settings.Spec.SessionClassName = &class.Name
		return suite.Client.Update(t.Context(), settings)
	})
	ada.converse(t, "first", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "first", session.StateAwaiting)
	ada.converse(t, "second", map[string]any{"initial_user_msg": "work"})
	ended := ada.conversation(t, "first").Status
	if ended.State != v1alpha1.StateStopped || ended.Reason != v1alpha1.ReasonIdle {
		t.Errorf("the first session is %s %s: %s", ended.State, ended.Reason, ended.Message)
	}
	t.Logf("the first session ended: %s", ended.Message)
	ada.awaitTexts(t, "second", "user: work; agent: Done.")
	want := "user: work; agent: Done."
	for i := range 2 {
		want += fmt.Sprintf("; user: m%d; agent: Done.", i)
		for _, id := range []string{"first", "second"} {
			same := ada.withKey(t, fmt.Sprintf("%s-%d", id, i))
			testenv.Await(t, func() error {
				code, answer := same.do(t, "POST", "/api/conversations/"+id+"/message", fmt.Sprintf(`{"message": "m%d"}`, i))
				if code != http.StatusOK {
					return fmt.Errorf("answered %d %s", code, answer)
				}
				return nil
			})
			ada.awaitTexts(t, id, want)
		}
	}
}
