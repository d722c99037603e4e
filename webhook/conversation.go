package webhook

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// The API server decides by itself where it can, and asks only about what needs code or other
// objects: URLs, ConfigMaps and Secrets, the bounds of a class; and about whoever may not use the
// settings or the class, who may have another right or is told what is missing. Repositories and
// branches of the plainest form are known to be good. It also asks where it knows that the answer
// is no: about fields that do not go together, and about an update that adds to what a session was
// asked to do or takes from it. As rules of the schema these would cost every write of a status
// more than all of its other rules; the schema holds the values. Of other updates there is
// something to say only if they change a lifetime or start the session again.
//
// +kubebuilder:webhook:path=/validate-parley-dev-v1alpha1-conversation,name=vconversation.parley.dev,mutating=false,groups=parley.dev,versions=v1alpha1,resources=conversations,verbs=create;update,failurePolicy=fail,sideEffects=None,matchPolicy=Equivalent,timeoutSeconds=5,admissionReviewVersions=v1,serviceName=parley-webhook,serviceNamespace=parley-system,patch=`{"matchConditions":[{"name":"needs-code","expression":"request.operation == 'CREATE' ? has(object.spec.mcpConfig) || has(object.spec.replayJSONRef) || has(object.spec.images) || has(object.spec.imageURLs) || has(object.spec.idleTimeout) || has(object.spec.startDeadline) || has(object.spec.maxDuration) || has(object.spec.ttlAfterStopped) || has(object.spec.repository) && !object.spec.repository.matches('^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$') || has(object.spec.selectedBranch) && (!object.spec.selectedBranch.matches('^[A-Za-z0-9_]+([./-][A-Za-z0-9_]+)*$') || object.spec.selectedBranch.contains('.lock')) || has(object.spec.suggestedTask) && !object.spec.suggestedTask.repo.matches('^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$') || has(object.spec.createMicroagent) && !object.spec.createMicroagent.repo.matches('^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$') || has(object.spec.sessionClassName) && object.spec.sessionClassName != 'default' && !authorizer.group('parley.dev').resource('sessionclasses').name(object.spec.sessionClassName).check('use').allowed() || has(object.spec.suggestedTask) && (has(object.spec.createMicroagent) || has(object.spec.gitProvider) && object.spec.gitProvider != object.spec.suggestedTask.gitProvider) || has(object.spec.selectedBranch) && !has(object.spec.repository) && !has(object.spec.suggestedTask) && !has(object.spec.createMicroagent) || has(object.spec.oneShot) && object.spec.oneShot && !has(object.spec.initialUserMsg) && !has(object.spec.suggestedTask) && !has(object.spec.createMicroagent) && !has(object.spec.conversationInstructions) || !authorizer.group('parley.dev').resource('usersettings').namespace(request.namespace).name(object.spec.userSettingsName).check('use').allowed() : ['repository', 'gitProvider', 'selectedBranch', 'initialUserMsg', 'imageURLs', 'suggestedTask', 'createMicroagent', 'conversationInstructions', 'workspace'].exists(name, (name in object.spec) != (name in oldObject.spec)) || (has(object.spec.oneShot) && object.spec.oneShot) != (has(oldObject.spec.oneShot) && oldObject.spec.oneShot) || has(object.spec.idleTimeout) != has(oldObject.spec.idleTimeout) || has(object.spec.idleTimeout) && object.spec.idleTimeout != oldObject.spec.idleTimeout || has(object.spec.startDeadline) != has(oldObject.spec.startDeadline) || has(object.spec.startDeadline) && object.spec.startDeadline != oldObject.spec.startDeadline || has(object.spec.maxDuration) != has(oldObject.spec.maxDuration) || has(object.spec.maxDuration) && object.spec.maxDuration != oldObject.spec.maxDuration || has(object.spec.ttlAfterStopped) != has(oldObject.spec.ttlAfterStopped) || has(object.spec.ttlAfterStopped) && object.spec.ttlAfterStopped != oldObject.spec.ttlAfterStopped || (has(oldObject.spec.suspend) && oldObject.spec.suspend && !(has(object.spec.suspend) && object.spec.suspend) || has(object.spec.restartAt) != has(oldObject.spec.restartAt) || has(object.spec.restartAt) && object.spec.restartAt != oldObject.spec.restartAt) && (has(object.spec.mcpConfig) || has(object.spec.replayJSONRef) || has(object.spec.images) || !authorizer.group('parley.dev').resource('usersettings').namespace(request.namespace).name(object.spec.userSettingsName).check('use').allowed())"}]}`

type conversationValidator struct {
	guard guard
}

var _ admission.Validator[*v1alpha1.Conversation] = &conversationValidator{}

func (v *conversationValidator) ValidateCreate(ctx context.Context, conversation *v1alpha1.Conversation) (admission.Warnings, error) {
	return v.check(ctx, conversation, conversationErrors(conversation), false)
}

// ValidateUpdate asks of who starts a session again what it asks of who creates one: the session
// gets the settings as they are then. Lifetimes that change are held against the class, for a
// session that runs is held to them. It has nothing to say about other changes of the lifecycle,
// and nothing else can change.
func (v *conversationValidator) ValidateUpdate(ctx context.Context, old, conversation *v1alpha1.Conversation) (admission.Warnings, error) {
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
func (v *conversationValidator) check(ctx context.Context, conversation *v1alpha1.Conversation, errs field.ErrorList, unchanged bool) (admission.Warnings, error) {
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
