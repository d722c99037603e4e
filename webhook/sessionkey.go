package webhook

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

var sessionKeyPath = field.NewPath("spec", "sessionKeyRef")

// checkSessionKey refuses a changed session key if the sender lacks a right. The holder of the key
// acts as the owner over HTTP, so the sender needs all of these rights:
//   - to impersonate the owner, unless the sender is the owner
//   - to impersonate the owner's group; membership in the group is not enough, because the key
//     stays valid even after the owner leaves the group
//   - to use the inherited settings
//
// The manager needs no right. The facade is always refused.
func (r request) checkSessionKey(ctx context.Context, old, settings *v1alpha1.UserSettings, f *findings) error {
	var before *v1alpha1.SecretKeyRef
	if old != nil {
		before = old.Spec.SessionKeyRef
	}
	switch {
	case ptr.Equal(before, settings.Spec.SessionKeyRef) || r.fromManager():
		return nil
	case r.fromFacade():
		f.forbid(sessionKeyPath, "the facade must not change the session key")
		return nil
	}
	if name := settings.OwnerName(); name != "" && name != r.user.Username {
		allowed, err := r.mayImpersonate(ctx, name)
		if err != nil {
			return err
		}
		if !allowed {
			f.forbid(sessionKeyPath, "you must be allowed to impersonate the owner %q to change the session key", name)
		}
	}
	if group := ptr.Deref(ownerOf(settings).Group, ""); group != "" {
		allowed, err := r.mayImpersonateGroup(ctx, group)
		if err != nil {
			return err
		}
		if !allowed {
			f.forbid(sessionKeyPath, "you must be allowed to impersonate the group %q to change the session key", group)
		}
	}
	if name := settings.Spec.InheritFrom; name != nil {
		_, err := r.checkInheritedUse(ctx, sessionKeyPath, *name, f)
		return err
	}
	return nil
}
