package webhook

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// checkModelName refuses a model whose provider is unknown, because the model's API key would be
// sent to the wrong host. If stored settings already have such a model, their other fields can
// still change.
func (f *findings) checkModelName(old *v1alpha1.UserSettings, spec *v1alpha1.UserSettingsSpec) {
	name := ptr.Deref(spec.LLMModel, "")
	unchanged := old != nil && ptr.Equal(old.Spec.LLMModel, spec.LLMModel) &&
		ptr.Equal(old.Spec.LLMBaseURL, spec.LLMBaseURL)
	if name == "" || strings.Contains(name, "/") || spec.LLMBaseURL != nil || unchanged ||
		v1alpha1.ModelProvider(name) != "" {
		return
	}
	f.errs = append(f.errs, invalid(field.NewPath("spec", "llmModel"), "must name the provider, as provider/model, such "+
		"as openai/gpt-5, because there is no base URL"))
}

// checkConversationModel refuses a model if its use would send the API key of the settings to
// another provider. If an earlier check failed, it does nothing: perhaps the sender is not allowed
// to use the settings, and must learn nothing about them.
func (f *findings) checkConversationModel(spec *v1alpha1.ConversationSpec, settings *v1alpha1.UserSettings) {
	if settings.UID == "" || len(f.errs) > 0 {
		return // the manager checks the model when the session starts
	}
	if problem := spec.ModelProblem(&settings.Spec); problem != "" {
		f.errs = append(f.errs, invalid(field.NewPath("spec", "llmModel"), problem))
	}
}

// agentCatalogue is the namespace and name of the ConfigMap with the agents.
type agentCatalogue client.ObjectKey

// checkAgent refuses an agent that is not in the catalogue. The error names the agents of the
// catalogue.
func (r request) checkAgent(ctx context.Context, catalogue agentCatalogue, agent string, f *findings) error {
	path := field.NewPath("spec", "agent")
	agents := &corev1.ConfigMap{}
	err := r.reader.Get(ctx, client.ObjectKey(catalogue), agents)
	if apierrors.IsNotFound(err) {
		f.warn(path, "cannot be checked: the agent catalogue does not exist yet")
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the agent catalogue: %w", err)
	}
	if _, known := agents.Data[agent]; !known {
		names := strings.Join(slices.Sorted(maps.Keys(agents.Data)), ", ")
		f.errs = append(f.errs, invalid(path, "must be an agent of the catalogue: "+names))
	}
	return nil
}

// warnWithoutModel warns if the first turn of a session will fail because its agent needs a model
// and none is named. The warning is not reliable, because the API server skips the webhook for many
// Conversations.
func (r request) warnWithoutModel(ctx context.Context, catalogue agentCatalogue, spec *v1alpha1.ConversationSpec,
	settings *v1alpha1.UserSettings, f *findings) {
	work := spec.InitialUserMsg != nil || spec.ConversationInstructions != nil || spec.SuggestedTask != nil ||
		spec.CreateMicroagent != nil || len(spec.ImageURLs) > 0 || len(spec.Images) > 0
	// Do not warn if an earlier check failed: perhaps the sender is not allowed to use the
	// UserSettings object, and must not learn that it names no model.
	if !work || settings.UID == "" || len(f.errs) > 0 {
		return
	}
	effective := spec.EffectiveSettings(&settings.Spec)
	if ptr.Deref(effective.LLMModel, "") != "" {
		return
	}
	agents := &corev1.ConfigMap{}
	if r.reader.Get(ctx, client.ObjectKey(catalogue), agents) != nil {
		return // without the catalogue there is no warning
	}
	var agent struct {
		NeedsModel bool `json:"needsModel"`
	}
	entry := agents.Data[ptr.Deref(effective.Agent, v1alpha1.DefaultAgent)]
	if yaml.Unmarshal([]byte(entry), &agent) == nil && agent.NeedsModel {
		f.warn(field.NewPath("spec", "userSettingsName"), "UserSettings %q have no model: the first turn will fail",
			settings.Name)
	}
}
