package webhook

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

var ownerPath = field.NewPath("spec", "owner")

const serviceAccountPrefix = "system:serviceaccount:"

// checkOwner refuses a change of the owner that the sender is not allowed to make:
//   - A sender may name themselves, or a person whom they may impersonate.
//   - A sender may require a group of their own, or a group that they may impersonate.
//   - Only a sender who may impersonate a required group may change or remove it, because the group
//     restricts the owner.
//   - Everybody who may change the settings may remove an owner without a group, because nobody
//     gains access.
//   - The manager may make any change, and the facade none.
func (r request) checkOwner(ctx context.Context, old, settings *v1alpha1.UserSettings, f *findings) error {
	before, after := ownerOf(old), ownerOf(settings)
	formerGroup, group := ptr.Deref(before.Group, ""), ptr.Deref(after.Group, "")
	switch {
	case before.Username == after.Username && formerGroup == group || r.fromManager():
		return nil
	case r.fromFacade():
		f.forbid(ownerPath, "the facade must not change the owner")
		return nil
	}
	if after.Username != "" && after.Username != before.Username && after.Username != r.user.Username {
		allowed, err := r.mayImpersonate(ctx, after.Username)
		if err != nil {
			return err
		}
		if !allowed {
			f.forbid(ownerPath.Child("username"), "you must be allowed to impersonate %q to set this owner", after.Username)
		}
	}
	if group != "" && group != formerGroup && !slices.Contains(r.user.Groups, group) {
		if err := r.checkGroup(ctx, group, "require this group", f); err != nil {
			return err
		}
	}
	if formerGroup != "" && group != formerGroup {
		return r.checkGroup(ctx, formerGroup, "remove the restriction to this group", f)
	}
	return nil
}

func ownerOf(settings *v1alpha1.UserSettings) v1alpha1.SettingsOwner {
	if settings == nil {
		return v1alpha1.SettingsOwner{}
	}
	return ptr.Deref(settings.Spec.Owner, v1alpha1.SettingsOwner{})
}

func (r request) checkGroup(ctx context.Context, group, purpose string, f *findings) error {
	allowed, err := r.mayImpersonateGroup(ctx, group)
	if err == nil && !allowed {
		f.forbid(ownerPath.Child("group"), "you must be allowed to impersonate the group %q to %s", group, purpose)
	}
	return err
}

func (r request) mayImpersonateGroup(ctx context.Context, group string) (bool, error) {
	r.namespace = "" // groups are cluster-scoped
	return r.may(ctx, "impersonate", "", "groups", group)
}

func (r request) mayImpersonate(ctx context.Context, username string) (bool, error) {
	if account, found := strings.CutPrefix(username, serviceAccountPrefix); found {
		var name string
		r.namespace, name, _ = strings.Cut(account, ":")
		return r.may(ctx, "impersonate", "", "serviceaccounts", name)
	}
	r.namespace = "" // users are cluster-scoped
	return r.may(ctx, "impersonate", "", "users", username)
}

var requesterPath = field.NewPath("metadata", "annotations").Key(v1alpha1.AnnotationRequestedBy)

// checkRequester refuses a new Conversation with the annotation AnnotationRequestedBy, unless the
// sender is the facade.
func (r request) checkRequester(conversation *v1alpha1.Conversation, f *findings) {
	if _, set := conversation.Annotations[v1alpha1.AnnotationRequestedBy]; set && !r.fromFacade() {
		f.forbid(requesterPath, "only the facade may set it")
	}
}

func requesterChanged(old, changed *v1alpha1.Conversation) bool {
	before, was := old.Annotations[v1alpha1.AnnotationRequestedBy]
	after, is := changed.Annotations[v1alpha1.AnnotationRequestedBy]
	return before != after || was != is
}
