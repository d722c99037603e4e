package controllers

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/status"
)

func choosing(model, agent string) func(*v1alpha1.ConversationSpec) {
	return func(s *v1alpha1.ConversationSpec) { s.LLMModel, s.Agent = &model, &agent }
}

func TestASessionKeepsTheModelOfItsConversation(t *testing.T) {
	t.Parallel()
	ns, archive := env.Namespace(t, nil), newTurnArchive(t)
	archive.manager(t, ns)
	settings := modelUser(t, ns)
	create(t, withTask(ns, "own").With(choosing("a/own", "needy")).Obj())
	kubelet{t, ns, "own"}.start()
	own := awaitState(t, ns, "own", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	free := runningConversation(t, ns, "free")
	doc := documentOf(t, ns, "own")
	if *doc.Settings.LLMModel != "a/own" || *doc.Settings.Agent != "needy" || doc.Agent.Name != "needy" {
		t.Errorf("the session starts with the model %s and the agent %s", *doc.Settings.LLMModel, doc.Agent.Name)
	}
	// A session with its own model ignores a new model in the UserSettings, but gets the new key.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("a/two") })
	archive.awaitModel(t, free, "a/two", "sk-first")
	if got := archive.sentModel(t, own); got.Model != "" {
		t.Errorf("the session with its own model was sent %s", got.Model)
	}
	llm := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "llm"}, llm); err != nil {
		t.Fatal(err)
	}
	change(t, llm, func(s *corev1.Secret) { s.Data["key"] = []byte("sk-second") })
	archive.awaitModel(t, own, "a/own", "sk-second")
	// The UserSettings get a model and a key of provider b. The session's own model belongs to
	// provider a, so the manager must not send the new key to this session.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("b/three") })
	change(t, llm, func(s *corev1.Secret) { s.Data["key"] = []byte("sk-of-b") })
	archive.awaitModel(t, free, "b/three", "sk-of-b")
	await(t, func() error { // until the manager has compared the models of this session too
		for line := range strings.Lines(logs.String()) {
			if strings.Contains(line, "spec.llmModel: must be a model of the same provider") && strings.Contains(line, ns) {
				return nil
			}
		}
		return errors.New("the manager does not report why it sends no model")
	})
	if got := archive.sentModel(t, own); got.Model != "a/own" || got.Key != "sk-second" {
		t.Errorf("the session with its own model was sent %s, with the new key: %v", got.Model, got.Key == "sk-of-b")
	}
	// With a base URL, the calls of all models go to the same host, so the manager may now send the
	// new key to this session.
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMBaseURL = ptr.To("https://llm.example.com") })
	archive.awaitModel(t, own, "a/own", "sk-of-b")
}

func TestAModelOfAnotherProviderThanInTheSettingsBlocksTheStart(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := modelUser(t, ns)
	create(t, withTask(ns, "c").With(choosing("b/own", "frugal")).Obj())
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed)
	if !strings.HasPrefix(c.Status.Message, "spec.llmModel: must be a model of the same provider") ||
		kstatusOf(t, c) != status.FailedStatus {
		t.Errorf("%s, %q", kstatusOf(t, c), c.Status.Message)
	}
	if err := gone(t, kubelet{t, ns, "c"}.object()); err != nil {
		t.Error(err)
	}
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.LLMModel = ptr.To("b/two") })
	if doc := documentOf(t, ns, "c"); *doc.Settings.LLMModel != "b/own" {
		t.Errorf("the session starts with the model %s", *doc.Settings.LLMModel)
	}
}

func TestAConversationWithAModelNeedsNoModelInTheSettings(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	requireAgents(t)
	create(t, userSettings(ns, "ada"), withTask(ns, "c").With(choosing("a/own", "needy")).Obj())
	kubelet{t, ns, "c"}.start()
	if c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning); c.Status.Turn != nil {
		t.Error(c.Status.Turn.Message)
	}
}
