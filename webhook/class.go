package webhook

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=parley.dev,resources=sessionclasses,verbs=list;watch

// checkUse forbids a class that the sender is not allowed to use. All users may use the default
// class. The manager may use any class: it creates the UserSettings of new users with the class
// that an administrator chose for their group.
func (r request) checkUse(ctx context.Context, name *string, f *findings) error {
	if name == nil || *name == v1alpha1.DefaultSessionClass || r.fromManager() {
		return nil
	}
	r.namespace = "" // classes are cluster-scoped
	allowed, err := r.may(ctx, "use", v1alpha1.SchemeGroupVersion.Group, "sessionclasses", *name)
	if err == nil && !allowed {
		f.forbid(field.NewPath("spec", "sessionClassName"), "you must be allowed to use the SessionClass %q", *name)
	}
	return err
}

// class calls classOf with the cache. It warns of a missing class, because the session waits for
// it.
func (r request) class(ctx context.Context, f *findings, names ...*string) (name string,
	spec *v1alpha1.SessionClassSpec, err error) {
	name, class, err := classOf(ctx, r.cache, names...)
	if err == nil && class.UID == "" && name != v1alpha1.DefaultSessionClass {
		f.warn(field.NewPath("spec", "sessionClassName"), "SessionClass %q does not exist yet", name)
	}
	return name, &class.Spec, err
}

// classOf returns the class with the first name that is not nil, or else the default class. If this
// class does not exist, classOf returns an empty class, which has no UID.
func classOf(ctx context.Context, classes client.Reader, names ...*string) (string, *v1alpha1.SessionClass, error) {
	name, class := *cmp.Or(append(names, ptr.To(v1alpha1.DefaultSessionClass))...), &v1alpha1.SessionClass{}
	if err := classes.Get(ctx, client.ObjectKey{Name: name}, class); client.IgnoreNotFound(err) != nil {
		return name, class, fmt.Errorf("get the SessionClass: %w", err)
	}
	return name, class, nil
}

// checkSettingsClass forbids UserSettings that exceed the limits of their class. If an update does
// not change the class, only the changed fields are checked, because the class may have become
// stricter since the last update. All limits apply when a session starts.
func (r request) checkSettingsClass(ctx context.Context, old, settings *v1alpha1.UserSettings, f *findings) error {
	if old == nil {
		old = &v1alpha1.UserSettings{}
	}
	changed := sets.New(old.Spec.Differences(&settings.Spec)...)
	classChanged := changed.Has("sessionClassName")
	if classChanged {
		if err := r.checkUse(ctx, settings.Spec.SessionClassName, f); err != nil {
			return err
		}
	}
	name, class, err := r.class(ctx, f, settings.Spec.SessionClassName)
	if err != nil {
		return err
	}
	errs := class.SettingsErrors(name, &settings.Spec)
	if !classChanged {
		errs = onlyFields(errs, changed)
	}
	f.errs = append(f.errs, errs...)
	return nil
}

func onlyFields(errs field.ErrorList, names sets.Set[string]) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool { return !names.Has(strings.TrimPrefix(e.Field, "spec.")) })
}

func (r request) checkConversationClass(ctx context.Context, conversation *v1alpha1.Conversation,
	settings *v1alpha1.UserSettings, f *findings) error {
	if err := r.checkUse(ctx, conversation.Spec.SessionClassName, f); err != nil {
		return err
	}
	name, class, err := r.class(ctx, f, conversation.Spec.SessionClassName, settings.Spec.SessionClassName)
	if err == nil {
		f.errs = append(f.errs, class.ConversationErrors(name, &conversation.Spec)...)
		f.errs = append(f.errs, class.SettingsErrors(name, &v1alpha1.UserSettingsSpec{Agent: conversation.Spec.Agent})...)
	}
	return err
}

// lifetimeErrors returns an error for each changed lifetime that exceeds the limits of the class.
// It uses the limits that were recorded when the session started. If no limits are recorded, or if
// the update restarts a stopped session, it uses the current limits of the class.
func (v *conversationValidator) lifetimeErrors(ctx context.Context, old, conversation *v1alpha1.Conversation) (
	field.ErrorList, error) {
	changed := sets.New(old.Spec.Differences(&conversation.Spec)...)
	if !changed.HasAny(lifetimes...) {
		return nil, nil
	}
	var recorded *string
	next := old.Status.State == v1alpha1.StateStopped && restarts(old, conversation)
	if started := old.Status.CurrentClass(); started != nil && !next {
		if started.SignedSecret {
			return onlyFields(started.Max.Errors(started.Name, &conversation.Spec), changed), nil
		}
		recorded = &started.Name // older versions recorded the name without the limits
	}
	request, err := v.guard.request(ctx, nil)
	if err != nil {
		return nil, err
	}
	settings := &v1alpha1.UserSettings{}
	err = request.reader.Get(ctx, request.key(conversation.Spec.UserSettingsName), settings)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get the UserSettings: %w", err)
	}
	name, class, err := request.class(ctx, &findings{}, recorded, conversation.Spec.SessionClassName,
		settings.Spec.SessionClassName)
	if err != nil {
		return nil, err
	}
	return onlyFields(class.ConversationErrors(name, &conversation.Spec), changed), nil
}
