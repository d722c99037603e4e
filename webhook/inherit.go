package webhook

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

var inheritPath = field.NewPath("spec", "inheritFrom")

// checkInheritance refuses inherited UserSettings that the sender is not allowed to use, and
// inheritance over two levels. It checks an unchanged inheritFrom only if the object gets a new
// owner, because the new owner's sessions get the inherited Secrets.
func (r request) checkInheritance(ctx context.Context, old, settings *v1alpha1.UserSettings, f *findings) error {
	name, changed := settings.Spec.InheritFrom, old == nil || !ptr.Equal(old.Spec.InheritFrom, settings.Spec.InheritFrom)
	newOwner := settings.OwnerName() != "" && (old == nil || old.OwnerName() != settings.OwnerName())
	if name == nil || !changed && !newOwner {
		return nil
	}
	if r.fromFacade() {
		f.forbid(inheritPath, "the facade must not choose inherited settings")
		return nil
	}
	if !r.fromManager() {
		if allowed, err := r.checkInheritedUse(ctx, inheritPath, *name, f); err != nil || !allowed {
			return err
		}
	}
	return r.checkLevels(ctx, settings.Name, *name, f)
}

func (r request) checkInheritedUse(ctx context.Context, path *field.Path, name string, f *findings) (bool, error) {
	allowed, err := r.may(ctx, "use", v1alpha1.SchemeGroupVersion.Group, "usersettings", name)
	if err == nil && !allowed {
		f.forbid(path, "you must be allowed to use the UserSettings %q, because sessions get the Secrets of inherited "+
			"settings", name)
	}
	return allowed, err
}

// checkLevels refuses chains of inheritance: the inherited UserSettings must not inherit, and no
// UserSettings may inherit from the heir. The cached list of heirs may be stale, so the manager
// looks for a chain again whenever it starts a session.
func (r request) checkLevels(ctx context.Context, heir, name string, f *findings) error {
	inherited := &v1alpha1.UserSettings{}
	switch err := r.reader.Get(ctx, r.key(name), inherited); {
	case apierrors.IsNotFound(err):
		f.warn(inheritPath, "UserSettings %q do not exist yet", name)
	case err != nil:
		return fmt.Errorf("get the inherited UserSettings: %w", err)
	case inherited.Spec.InheritFrom != nil:
		f.errs = append(f.errs, invalid(inheritPath, "must name settings without inheritFrom"))
	}
	var heirs v1alpha1.UserSettingsList
	if err := r.cache.List(ctx, &heirs, client.InNamespace(r.namespace),
		client.MatchingFields{v1alpha1.IndexInheritFrom: heir}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the UserSettings that inherit from %s: %w", heir, err)
	}
	if len(heirs.Items) > 0 {
		problem := fmt.Sprintf("must be absent: UserSettings %q inherit from these settings", heirs.Items[0].Name)
		f.errs = append(f.errs, invalid(inheritPath, problem))
	}
	return nil
}

// inherit adds the inherited values to UserSettings. It does not fail if the inherited UserSettings
// do not exist: the manager reports this when a session starts.
func (r request) inherit(ctx context.Context, settings *v1alpha1.UserSettings) error {
	if settings.Spec.InheritFrom == nil {
		return nil
	}
	inherited := &v1alpha1.UserSettings{}
	err := r.reader.Get(ctx, r.key(*settings.Spec.InheritFrom), inherited)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get the inherited UserSettings: %w", err)
	}
	settings.Spec = *settings.Spec.Inherit(&inherited.Spec)
	return nil
}
