package integration_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func (p *person) modelRevision(t *testing.T, id string) string {
	t.Helper()
	secret := &corev1.Secret{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: v1alpha1.SessionName(id)},
		secret); err != nil {
		t.Fatal(err)
	}
	return secret.Annotations[v1alpha1.AnnotationModel]
}

// changeModel changes the settings and waits until the manager has sent the new model to the
// archive, from which the session reads it.
func (p *person) changeModel(t *testing.T, id string, settings map[string]any) {
	t.Helper()
	before := p.modelRevision(t, id)
	p.wants(t, 200, "POST", "/api/settings", jsonOf(t, settings))
	testenv.Await(t, func() error {
		if p.modelRevision(t, id) == before {
			return fmt.Errorf("the model was not sent to the session")
		}
		return nil
	})
}

func TestACorrectedModelAnswersTheNextMessage(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("Hello."))
	model := decode[struct {
		URL string `json:"llm_base_url"`
	}](t, ada.wants(t, 200, "GET", "/api/settings", "")).URL
	nowhere := "http://" + facadeenv.FreeAddress()
	ada.wants(t, 200, "POST", "/api/settings", jsonOf(t, map[string]any{"llm_base_url": nowhere, "llm_api_key": "a-key"}))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateError)
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonModelUnreachable, "could not be reached")
	pod := ada.podUID(t, "talk")
	ada.changeModel(t, "talk", map[string]any{"llm_base_url": model, "llm_api_key": "another-key"})
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonModelUnreachable, "") // unchanged until the next turn
	ada.say(t, "talk", "again")
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.awaitNoTurn(t, "talk")
	if got := texts(ada.events(t, "talk")); !strings.HasSuffix(got, "agent: Hello.") {
		t.Errorf("the messages are %s", got)
	}
	if ada.podUID(t, "talk") != pod {
		t.Error("the session was restarted")
	}
}

func TestTheNextMessageIsAnsweredAfterAModelIsSet(t *testing.T) {
	t.Parallel()
	ada, model := newcomer(t, says("Hello."))
	message := "work"
	if err := suite.Client.Create(t.Context(), &v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "talk"},
		Spec:       v1alpha1.ConversationSpec{UserSettingsName: ada.name, InitialUserMsg: &message},
	}); err != nil {
		t.Fatal(err)
	}
	ada.awaitState(t, "talk", v1alpha1.StateRunning)
	ada.awaitAgent(t, "talk", session.StateError)
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonNoModel, "")
	ada.changeModel(t, "talk", map[string]any{"llm_model": "scripted/model", "llm_base_url": model,
		"llm_api_key": "a-key"})
	ada.say(t, "talk", "again")
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.awaitNoTurn(t, "talk")
}

func (p *person) podUID(t *testing.T, id string) string {
	t.Helper()
	pod := &corev1.Pod{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: v1alpha1.SessionName(id)},
		pod); err != nil {
		t.Fatal(err)
	}
	return string(pod.UID)
}
