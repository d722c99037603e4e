package webhook

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// +kubebuilder:rbac:groups=parley.dev,resources=conversations,verbs=list;watch

type userSettingsValidator struct {
	guard  guard
	cache  client.Reader
	agents agentCatalogue
}

var _ admission.Validator[*v1alpha1.UserSettings] = &userSettingsValidator{}

func (v *userSettingsValidator) ValidateCreate(ctx context.Context, settings *v1alpha1.UserSettings) (
	admission.Warnings, error) {
	return v.validate(ctx, nil, settings)
}

// ValidateUpdate checks that the sender may read every referenced Secret, even if the reference is
// unchanged: the change of another field, such as llmBaseURL, may send the key to another receiver.
// Parley itself may have no permission to read a Secret that an administrator chose. If Parley is
// the sender, only new references are therefore checked, and the update must not send an
// administrator's key to another receiver.
func (v *userSettingsValidator) ValidateUpdate(ctx context.Context, old, settings *v1alpha1.UserSettings) (
	admission.Warnings, error) {
	if equality.Semantic.DeepEqual(old.Spec, settings.Spec) {
		return nil, nil
	}
	return v.validate(ctx, old, settings)
}

// ValidateDelete warns of running sessions, which end when their UserSettings are deleted.
func (v *userSettingsValidator) ValidateDelete(ctx context.Context, settings *v1alpha1.UserSettings) (
	admission.Warnings, error) {
	var conversations v1alpha1.ConversationList
	err := v.cache.List(ctx, &conversations, client.InNamespace(settings.Namespace),
		client.MatchingFields{v1alpha1.IndexUserSettingsName: settings.Name})
	if err != nil {
		logf.FromContext(ctx).Error(err, "Cannot list the Conversations of the deleted UserSettings")
		return nil, nil
	}
	live := 0
	for i := range conversations.Items {
		if conversations.Items[i].Status.State != v1alpha1.StateStopped {
			live++
		}
	}
	if live == 0 {
		return nil, nil
	}
	return admission.Warnings{fmt.Sprintf("This deletion ends running sessions: %d", live)}, nil
}

func (v *userSettingsValidator) validate(ctx context.Context, old, settings *v1alpha1.UserSettings) (admission.Warnings,
	error) {
	if old == nil || sets.New(old.Spec.Differences(&settings.Spec)...).HasAny("mcpConfig", "secretsStore") {
		if errs := sizeErrors(settings.Spec.MCPConfig, settings.SecretReferences()); len(errs) > 0 {
			return nil, refusal("UserSettings", settings.Name, errs)
		}
	}
	found := &findings{}
	found.checkUserSettings(&settings.Spec)
	found.checkModelName(old, &settings.Spec)
	if settings.Spec.SandboxBaseContainerImage != nil && settings.Spec.SandboxRuntimeContainerImage != nil {
		found.warn(field.NewPath("spec", "sandboxBaseContainerImage"), "has no effect: sandboxRuntimeContainerImage takes "+
			"precedence")
	}
	request, err := v.guard.request(ctx, map[string]string{v1alpha1.LabelUserSettings: settings.Name})
	if err == nil {
		refs := settings.SecretReferences()
		if old != nil && request.fromParley() {
			refs = added(old.SecretReferences(), refs)
			err = request.checkReceivers(ctx, old, settings, found)
		}
		if err == nil {
			err = request.checkSecrets(ctx, refs, found)
		}
	}
	if err == nil {
		err = request.checkSettingsClass(ctx, old, settings, found)
	}
	if err == nil {
		err = request.checkOwner(ctx, old, settings, found)
	}
	if err == nil {
		err = request.checkSessionKey(ctx, old, settings, found)
	}
	if err == nil {
		err = request.checkInheritance(ctx, old, settings, found)
	}
	// Check the agent only if it changes. Otherwise, UserSettings could not be changed after their
	// agent was removed from the catalogue.
	if agent := settings.Spec.Agent; err == nil && agent != nil && (old == nil || !ptr.Equal(old.Spec.Agent, agent)) {
		err = request.checkAgent(ctx, v.agents, *agent, found)
	}
	if err != nil {
		return found.warnings, cannotCheck(ctx, err)
	}
	return found.warnings, refusal("UserSettings", settings.Name, found.errs)
}

// added returns the references that only the second list contains. A reference to the same key in
// another field counts as added. The position in a list does not matter.
func added(before, after []v1alpha1.SecretReference) []v1alpha1.SecretReference {
	known := sets.New[place]()
	for _, r := range before {
		known.Insert(placeOf(r))
	}
	return slices.DeleteFunc(after, func(r v1alpha1.SecretReference) bool { return known.Has(placeOf(r)) })
}

// place is a reference in a field. The path of the field contains no positions in lists.
type place struct {
	path string
	ref  v1alpha1.SecretKeyRef
}

func placeOf(r v1alpha1.SecretReference) place {
	return place{position.ReplaceAllString(r.Path.String(), ""), r.Ref}
}

var position = regexp.MustCompile(`\[[0-9]+\]`)
