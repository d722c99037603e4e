package controllers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/status"
)

func catalogueWith(namespace string, agents map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentCatalogueName},
		Data: agents}
}

func TestSettingsWithoutAnAgentUseTheDefaultAgent(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil) // also the operator's namespace in this test
	startManagerIn(t, ns, ns)
	create(t, userSettings(ns, "ada"), withTask(ns, "before").Obj())
	if doc := documentOf(t, ns, "before"); doc.Agent != nil {
		t.Errorf("without a catalogue, the agent is %+v", doc.Agent)
	}
	create(t, catalogueWith(ns, map[string]string{session.DefaultAgent: "{protocol: acp, command: [agent]}"}))
	create(t, withTask(ns, "after").Obj())
	doc := documentOf(t, ns, "after")
	if doc.Agent == nil || doc.Agent.Name != session.DefaultAgent || doc.Agent.Protocol != session.ProtocolACP {
		t.Errorf("the agent is %+v", doc.Agent)
	}
	if uid := getConversation(t, ns, "after").UID; doc.UID != string(uid) {
		t.Errorf("the document has UID %q, the Conversation %s", doc.UID, uid)
	}
}

func TestConfirmationModeNeedsAnAgentThatAsksForPermission(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManagerIn(t, ns, ns)
	catalogue := catalogueWith(ns, map[string]string{"coder": "{protocol: acp, command: [coder]}", "tools": "{}"})
	settings, idle := userSettings(ns, "ada"), userSettings(ns, "bob")
	settings.Spec.Agent, settings.Spec.ConfirmationMode = ptr.To("coder"), ptr.To(true)
	idle.Spec.Agent, idle.Spec.ConfirmationMode = ptr.To("tools"), ptr.To(true)
	create(t, catalogue, settings, idle, withTask(ns, "c").Obj(),
		withTask(ns, "d").With(func(s *v1alpha1.ConversationSpec) {
			s.UserSettingsName = "bob"
		}).Obj())
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed)
	if !strings.Contains(c.Status.Message, "spec.confirmationMode: agent coder does not ask") ||
		kstatusOf(t, c) != status.FailedStatus {
		t.Errorf("%s, %q", kstatusOf(t, c), c.Status.Message)
	}
	if err := gone(t, kubelet{t, ns, "c"}.object()); err != nil {
		t.Error(err)
	}
	// Session d starts although its agent does not ask for permission: an agent without a command
	// performs no actions.
	kubelet{t, ns, "d"}.pod()
	change(t, catalogue, func(m *corev1.ConfigMap) {
		m.Data["coder"] = "{protocol: acp, confirms: true, command: " +
			"[coder]}"
	})
	kubelet{t, ns, "c"}.pod()
	await(t, func() error {
		if c := getConversation(t, ns, "c"); c.Status.Reason != v1alpha1.ReasonScheduling {
			return fmt.Errorf("the reason is %s", c.Status.Reason)
		}
		return nil
	})
}
