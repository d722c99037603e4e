package webhook

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// NeedsCode stands for the condition of that name, which make manifests puts in its place.
//
// +kubebuilder:webhook:path=/validate-parley-dev-v1alpha1-conversation,name=vconversation.parley.dev,mutating=false,groups=parley.dev,versions=v1alpha1,resources=conversations,verbs=create;update,failurePolicy=fail,sideEffects=None,matchPolicy=Equivalent,timeoutSeconds=5,admissionReviewVersions=v1,serviceName=parley-webhook,serviceNamespace=parley-system,patch=`{"matchConditions":[{"name":"needs-code","expression":"NeedsCode"}]}`

type conversationValidator struct {
	guard guard
}

var _ admission.Validator[*v1alpha1.Conversation] = &conversationValidator{}

func (v *conversationValidator) ValidateCreate(ctx context.Context, conversation *v1alpha1.Conversation) (
	admission.Warnings, error) {
	return v.check(ctx, conversation, conversationErrors(conversation), false)
}

// ValidateUpdate asks of who starts a session again what it asks of who creates one: the session
// gets the settings as they are then. Lifetimes that change are held against the class, for a
// session that runs is held to them. It has nothing to say about other changes of the lifecycle,
// and nothing else can change.
func (v *conversationValidator) ValidateUpdate(ctx context.Context, old, conversation *v1alpha1.Conversation) (
	admission.Warnings, error) {
	if errs := changeErrors(old, conversation); len(errs) > 0 {
		return nil, refusal("Conversation", conversation.Name, errs)
	}
	errs, err := v.lifetimeErrors(ctx, old, conversation)
	switch {
	case err != nil:
		return nil, cannotCheck(ctx, err)
	case !startsAgain(old, conversation):
		return nil, refusal("Conversation", conversation.Name, errs)
	}
	return v.check(ctx, conversation, errs, true)
}

func startsAgain(old, conversation *v1alpha1.Conversation) bool {
	return old.Spec.Suspend && !conversation.Spec.Suspend || !old.Spec.RestartAt.Equal(conversation.Spec.RestartAt)
}

func (v *conversationValidator) ValidateDelete(context.Context, *v1alpha1.Conversation) (admission.Warnings, error) {
	return nil, nil
}

// check adds what the sender may not refer to. Who keeps keys, and may read none, need not be
// allowed to read what somebody else, who was, referred to: a user of the facade starts again
// whatever session is theirs.
func (v *conversationValidator) check(ctx context.Context, conversation *v1alpha1.Conversation, errs field.ErrorList,
	unchanged bool) (admission.Warnings, error) {
	found := &findings{errs: errs}
	request, err := v.guard.request(ctx, map[string]string{
		v1alpha1.LabelConversation: conversation.Name,
		v1alpha1.LabelUserSettings: conversation.Spec.UserSettingsName,
	})
	settings := &v1alpha1.UserSettings{}
	if err == nil {
		err = request.checkSettings(ctx, conversation.Spec.UserSettingsName, settings, found)
	}
	if err == nil && !unchanged {
		err = request.checkConversationClass(ctx, conversation, settings, found)
	}
	if err == nil && (!unchanged || !request.byKeeper()) {
		err = request.checkReferences(ctx, conversation, found)
	}
	if err != nil {
		return found.warnings, cannotCheck(ctx, err)
	}
	return found.warnings, refusal("Conversation", conversation.Name, found.errs)
}

func (r request) checkReferences(ctx context.Context, conversation *v1alpha1.Conversation, found *findings) error {
	if err := r.checkSecrets(ctx, conversation.SecretReferences(), found); err != nil {
		return err
	}
	return r.checkConfigMaps(ctx, conversation.ConfigMapReferences(), found)
}
