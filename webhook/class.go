package webhook

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// +kubebuilder:rbac:roleName=parley-manager-cluster,groups=parley.dev,resources=sessionclasses,verbs=list;watch

// checkUse forbids to name a class that the sender may not use. Everybody may use the default one.
func (r request) checkUse(ctx context.Context, name *string, f *findings) error {
	if name == nil || *name == v1alpha1.DefaultSessionClass {
		return nil
	}
	everywhere := r
	everywhere.namespace = "" // a class is the whole cluster's
	allowed, err := everywhere.may(ctx, "use", v1alpha1.SchemeGroupVersion.Group, "sessionclasses", *name)
	if err == nil && !allowed {
		f.forbid(field.NewPath("spec", "sessionClassName"), "you must be allowed to use the SessionClass %q", *name)
	}
	return err
}

// class that applies, by its name. One that does not exist is a warning: the session waits for it.
func (r request) class(ctx context.Context, f *findings, names ...*string) (name string,
	spec *v1alpha1.SessionClassSpec, err error) {
	name = v1alpha1.DefaultSessionClass
	if at := slices.IndexFunc(names, func(n *string) bool { return n != nil }); at >= 0 {
		name = *names[at]
	}
	class := &v1alpha1.SessionClass{}
	err = r.cache.Get(ctx, client.ObjectKey{Name: name}, class)
	switch {
	case apierrors.IsNotFound(err) && name != v1alpha1.DefaultSessionClass:
		f.warn(field.NewPath("spec", "sessionClassName"), "SessionClass %q does not exist yet", name)
	case client.IgnoreNotFound(err) != nil:
		return name, nil, fmt.Errorf("get the SessionClass: %w", err)
	}
	return name, &class.Spec, nil
}

// checkSettingsClass forbids what the class of settings does not allow. A class that became
// stricter keeps nobody from changing something else: what it forbids shows when a session starts.
func (r request) checkSettingsClass(ctx context.Context, old, settings *v1alpha1.UserSettings, f *findings) error {
	changed := old == nil || !ptr.Equal(old.Spec.SessionClassName, settings.Spec.SessionClassName)
	if changed {
		if err := r.checkUse(ctx, settings.Spec.SessionClassName, f); err != nil {
			return err
		}
	}
	name, class, err := r.class(ctx, f, settings.Spec.SessionClassName)
	if err != nil {
		return err
	}
	var before map[string]any
	if !changed {
		if before, err = runtime.DefaultUnstructuredConverter.ToUnstructured(&old.Spec); err != nil {
			return fmt.Errorf("convert the settings: %w", err)
		}
	}
	after, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&settings.Spec)
	if err != nil {
		return fmt.Errorf("convert the settings: %w", err)
	}
	for _, e := range class.SettingsErrors(name, &settings.Spec) {
		if at := strings.TrimPrefix(e.Field, "spec."); before == nil || before[at] != after[at] {
			f.errs = append(f.errs, e)
		}
	}
	return nil
}

// checkConversationClass forbids what the class of a session does not allow.
func (r request) checkConversationClass(ctx context.Context, conversation *v1alpha1.Conversation,
	settings *v1alpha1.UserSettings, f *findings) error {
	if err := r.checkUse(ctx, conversation.Spec.SessionClassName, f); err != nil {
		return err
	}
	name, class, err := r.class(ctx, f, conversation.Spec.SessionClassName, settings.Spec.SessionClassName)
	if err == nil {
		f.errs = append(f.errs, class.ConversationErrors(name, &conversation.Spec)...)
	}
	return err
}

// lifetimeErrors are lifetimes that were changed to what the class does not allow.
func (v *conversationValidator) lifetimeErrors(ctx context.Context, old, conversation *v1alpha1.Conversation) (
	field.ErrorList, error) {
	changed := v1alpha1.ConversationSpec{}
	for _, lifetime := range []struct{ before, after, changed **metav1.Duration }{
		{&old.Spec.IdleTimeout, &conversation.Spec.IdleTimeout, &changed.IdleTimeout},
		{&old.Spec.StartDeadline, &conversation.Spec.StartDeadline, &changed.StartDeadline},
		{&old.Spec.MaxDuration, &conversation.Spec.MaxDuration, &changed.MaxDuration},
		{&old.Spec.TTLAfterStopped, &conversation.Spec.TTLAfterStopped, &changed.TTLAfterStopped},
	} {
		if !ptr.Equal(*lifetime.before, *lifetime.after) {
			*lifetime.changed = *lifetime.after
		}
	}
	if equality.Semantic.DeepEqual(changed, v1alpha1.ConversationSpec{}) {
		return nil, nil
	}
	request, err := v.guard.request(ctx, nil)
	if err != nil {
		return nil, err
	}
	settings := &v1alpha1.UserSettings{}
	if err := request.reader.Get(ctx, request.key(conversation.Spec.UserSettingsName), settings); client.IgnoreNotFound(
		err) != nil {
		return nil, fmt.Errorf("get the UserSettings: %w", err)
	}
	name, class, err := request.class(ctx, &findings{}, conversation.Spec.SessionClassName, settings.Spec.SessionClassName)
	if err != nil {
		return nil, err
	}
	return class.ConversationErrors(name, &changed), nil
}
