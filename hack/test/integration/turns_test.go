package integration_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// turnTimeout is the maximum time until the status shows the outcome of a turn.
const turnTimeout = 5 * time.Second

// awaitTurn waits until the status shows this outcome and its message contains the text. An empty
// state stands for no outcome.
func (p *person) awaitTurn(t *testing.T, id string, state v1alpha1.TurnState, reason, message string) {
	t.Helper()
	began := time.Now()
	testenv.Await(t, func() error {
		turn := v1alpha1.ConversationTurn{}
		if now := p.conversation(t, id).Status.Turn; now != nil {
			turn = *now
		}
		if turn.State != state || turn.Reason != reason || !strings.Contains(turn.Message, message) {
			return fmt.Errorf("the turn is %+v, want %s %s", turn, state, reason)
		}
		return nil
	})
	if took := time.Since(began); took > turnTimeout {
		t.Errorf("the outcome %s %s was visible after %s", state, reason, took)
	}
}

func (p *person) awaitNoTurn(t *testing.T, id string) {
	t.Helper()
	p.awaitTurn(t, id, "", "", "")
}

// column returns the cell that kubectl get shows in the column Turn.
func (p *person) column(t *testing.T, id string) any {
	t.Helper()
	c, err := kubernetes.NewForConfig(suite.Config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.RESTClient().Get().AbsPath("/apis/parley.dev/v1alpha1/namespaces/"+p.namespace+"/conversations/"+id).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	table := decode[metav1.Table](t, string(text))
	for i, column := range table.ColumnDefinitions {
		if column.Name == "Turn" {
			return table.Rows[0].Cells[i]
		}
	}
	t.Fatalf("the columns are %+v", table.ColumnDefinitions)
	return nil
}

func (p *person) say(t *testing.T, id, message string) {
	t.Helper()
	p.wants(t, 200, "POST", "/api/conversations/"+id+"/message", jsonOf(t, map[string]any{"message": message}))
}

func (p *person) restart(t *testing.T, id string) {
	t.Helper()
	p.stop(t, id)
	testenv.Await(t, func() error {
		code, answer := p.do(t, "POST", "/api/conversations/"+id+"/start", "{}")
		if code != http.StatusOK {
			return fmt.Errorf("answered %d %s", code, answer)
		}
		return nil
	})
	p.awaitState(t, id, v1alpha1.StateRunning)
}

func addAgent(t *testing.T, name, entry string) {
	t.Helper()
	testenv.Await(t, func() error {
		catalogue := &corev1.ConfigMap{}
		if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: "parley-system",
			Name: v1alpha1.AgentCatalogueName}, catalogue); err != nil {
			return err
		}
		catalogue.Data[name] = entry
		return suite.Client.Update(t.Context(), catalogue)
	})
}

func TestTheStatusShowsThatTheModelRefusedTheKey(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, scriptedmodel.Step{Failure: &scriptedmodel.Failure{Kind: scriptedmodel.BadKey}},
		says("Hello."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateError)
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonModelRefusedKey, "refused the API key")
	if got := ada.column(t, "talk"); got != v1alpha1.ReasonModelRefusedKey {
		t.Errorf("kubectl get shows %v", got)
	}
	out, err := ada.plugin(t, nil, "status", "talk")
	if err != nil || !strings.HasPrefix(out, "✗ talk  RUNNING  Running  Failed: ModelRefusedKey") ||
		!strings.Contains(out, "Check the Secret that llmAPIKeyRef of UserSettings ada names") {
		t.Errorf("%v: %s", err, out)
	}
	if answer := ada.wants(t, 200, "GET", "/api/conversations/talk", ""); !strings.Contains(answer,
		`"turn":{"state":"Failed","reason":"ModelRefusedKey","message":"The model's provider refused the API key.`) {
		t.Errorf("the facade answers %s", answer)
	}
	ada.say(t, "talk", "again")
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.awaitNoTurn(t, "talk")
}

func TestTheStatusShowsAnUnreachableModel(t *testing.T) {
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
	ada.wants(t, 200, "POST", "/api/settings", jsonOf(t, map[string]any{"llm_base_url": model, "llm_api_key": "a-key"}))
	ada.restart(t, "talk")
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonModelUnreachable, "") // unchanged until the next turn
	ada.say(t, "talk", "again")
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.awaitNoTurn(t, "talk")
}

func TestTheStatusShowsThatNoModelIsSet(t *testing.T) {
	t.Parallel()
	ada, model := newcomer(t, says("Hello."))
	message := "work"
	if err := suite.Client.Create(t.Context(), &v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{Namespace: ada.namespace, Name: "talk"},
		Spec:       v1alpha1.ConversationSpec{UserSettingsName: ada.name, InitialUserMsg: &message},
	}); err != nil {
		t.Fatal(err)
	}
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonNoModel, "No model is set")
	ada.awaitState(t, "talk", v1alpha1.StateRunning)
	ada.awaitAgent(t, "talk", session.StateError)
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonNoModel, "")
	ada.wants(t, 200, "POST", "/api/settings", jsonOf(t, map[string]any{"llm_model": "scripted/model",
		"llm_base_url": model, "llm_api_key": "a-key"}))
	ada.restart(t, "talk")
	ada.say(t, "talk", "again")
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.awaitNoTurn(t, "talk")
}

func TestTheStatusShowsAnAgentThatCannotStart(t *testing.T) {
	t.Parallel()
	addAgent(t, "broken", "{protocol: acp, command: [/nowhere/agent]}")
	ada := newPerson(t, map[string]any{"agent": "broken"}, says("Hello."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateError)
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonAgentNotStarted, "the agent broken cannot be started")
	// The first message still waits. Restart the session with a working agent, which then answers
	// the message.
	ada.wants(t, 200, "POST", "/api/settings", `{"agent": "CodeActAgent"}`)
	ada.restart(t, "talk")
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.awaitNoTurn(t, "talk")
	if got := texts(ada.events(t, "talk")); !strings.HasSuffix(got, "agent: Hello.") {
		t.Errorf("the messages are %s", got)
	}
}

func TestTheStatusShowsAFailedTurn(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, map[string]any{"max_iterations": 1}, says("I begin.", bash("true")), says("Hello."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateError)
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonTurnFailed, "")
	ada.say(t, "talk", "again")
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.awaitNoTurn(t, "talk")
}

// If a failed turn also ends the session, the session must report the outcome first.
func TestTheStatusShowsTheFailureOfAnEndedSession(t *testing.T) {
	t.Parallel()
	addAgent(t, "failing", `{command: [sh, -c, "exit 3"]}`)
	ada := newPerson(t, map[string]any{"agent": "failing"})
	ada.wants(t, 200, "POST", "/api/conversations", `{"conversation_id": "talk", "initial_user_msg": "work"}`)
	ada.awaitState(t, "talk", v1alpha1.StateStopped)
	ada.awaitTurn(t, "talk", v1alpha1.TurnFailed, v1alpha1.ReasonTurnFailed, "status 3")
}

func TestTheStatusShowsAnAwaitedApproval(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, map[string]any{"confirmation_mode": true}, says("May I?", bash("echo yes > confirmed")),
		says("Done."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateConfirmation)
	ada.awaitTurn(t, "talk", v1alpha1.TurnNeedsApproval, v1alpha1.ReasonApprovalPending, "waits for approval")
	if got := ada.column(t, "talk"); got != v1alpha1.ReasonApprovalPending {
		t.Errorf("kubectl get shows %v", got)
	}
	ada.wants(t, 200, "POST", "/api/conversations/talk/events",
		`{"action": "change_agent_state", "args": {"agent_state": "user_confirmed"}}`)
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	ada.awaitNoTurn(t, "talk")

	ada.wants(t, 200, "DELETE", "/api/conversations/talk", "")
}
