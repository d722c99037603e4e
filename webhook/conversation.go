package webhook

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

type conversationValidator struct {
	guard  guard
	agents agentCatalogue
}

var _ admission.Validator[*v1alpha1.Conversation] = &conversationValidator{}

func (v *conversationValidator) ValidateCreate(ctx context.Context, conversation *v1alpha1.Conversation) (
	admission.Warnings, error) {
	if errs := sizeErrors(conversation.Spec.MCPConfig, conversation.SecretReferences()); len(errs) > 0 {
		return nil, refusal("Conversation", conversation.Name, errs)
	}
	found := &findings{}
	found.checkConversation(&conversation.Spec)
	return v.check(ctx, conversation, found, false)
}

// ValidateUpdate checks a restart like a creation, because the session then gets the current
// settings. Changed lifetimes must stay within the limits of the class even without a restart,
// because all of them except idleTimeout also apply to a session that has already started.
func (v *conversationValidator) ValidateUpdate(ctx context.Context, old, conversation *v1alpha1.Conversation) (
	admission.Warnings, error) {
	if errs := changeErrors(old, conversation); len(errs) > 0 {
		return nil, refusal("Conversation", conversation.Name, errs)
	}
	errs, err := v.lifetimeErrors(ctx, old, conversation)
	switch {
	case err != nil:
		return nil, cannotCheck(ctx, err)
	case !restarts(old, conversation):
		return nil, refusal("Conversation", conversation.Name, errs)
	}
	return v.check(ctx, conversation, &findings{errs: errs}, true)
}

func (v *conversationValidator) ValidateDelete(context.Context, *v1alpha1.Conversation) (admission.Warnings, error) {
	return nil, nil
}

// check refuses references that the sender is not allowed to use. If the facade restarts a
// session for a user, check accepts all Secrets and ConfigMaps to which the Conversation already
// refers. Otherwise, the user could not restart a session with Secrets that Parley does not manage.
func (v *conversationValidator) check(ctx context.Context, conversation *v1alpha1.Conversation, found *findings,
	restart bool) (admission.Warnings, error) {
	request, err := v.guard.request(ctx, map[string]string{
		v1alpha1.LabelConversation: conversation.Name,
		v1alpha1.LabelUserSettings: conversation.Spec.UserSettingsName,
	})
	settings := &v1alpha1.UserSettings{}
	if err == nil {
		err = request.checkSettings(ctx, conversation.Spec.UserSettingsName, settings, found)
	}
	if err == nil && !restart {
		request.checkRequester(conversation, found)
		err = request.checkConversationClass(ctx, conversation, settings, found)
	}
	if agent := conversation.Spec.Agent; err == nil && !restart && agent != nil {
		err = request.checkAgent(ctx, v.agents, *agent, found)
	}
	if err == nil && (!restart || !request.fromParley()) {
		err = request.checkSecrets(ctx, conversation.SecretReferences(), found)
		if err == nil {
			err = request.checkConfigMaps(ctx, conversation.ConfigMapReferences(), found)
		}
	}
	if err != nil {
		return found.warnings, cannotCheck(ctx, err)
	}
	if !restart {
		found.checkConversationModel(&conversation.Spec, settings)
	}
	request.warnWithoutModel(ctx, v.agents, &conversation.Spec, settings, found)
	return found.warnings, refusal("Conversation", conversation.Name, found.errs)
}
