package webhook

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/recording"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// checkSecrets forbids references to Secrets that the sender is not allowed to read. It warns if a
// Secret that the sender may read does not exist.
func (r request) checkSecrets(ctx context.Context, refs []v1alpha1.SecretReference, f *findings) error {
	names := sets.New[string]()
	for _, ref := range refs {
		names.Insert(ref.Ref.Name)
	}
	denied, err := r.deniedSecrets(ctx, names)
	if err != nil {
		return err
	}
	missing := sets.New[string]()
	for name := range names.Difference(denied) {
		exists, err := r.secretExists(ctx, name)
		if err != nil {
			return fmt.Errorf("get a Secret: %w", err)
		}
		if !exists {
			missing.Insert(name)
		}
	}
	for _, ref := range refs {
		if denied.Has(ref.Ref.Name) {
			f.forbid(ref.Path, "you must be allowed to get the Secret %q to refer to it", ref.Ref.Name)
		}
		if missing.Has(ref.Ref.Name) {
			f.warn(ref.Path, "Secret %q does not exist yet", ref.Ref.Name)
		}
	}
	return nil
}

// checkConfigMaps forbids references to ConfigMaps that the sender is not allowed to read. It warns
// if a ConfigMap that the sender may read does not exist. ConfigMaps may be large, so it reads each
// of them once, one after the other.
func (r request) checkConfigMaps(ctx context.Context, refs []v1alpha1.ConfigMapReference, f *findings) error {
	byName := map[string][]v1alpha1.ConfigMapReference{}
	for _, ref := range refs {
		byName[ref.Ref.Name] = append(byName[ref.Ref.Name], ref)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		if err := r.checkConfigMap(ctx, name, byName[name], f); err != nil {
			return err
		}
	}
	return nil
}

func (r request) checkConfigMap(ctx context.Context, name string, refs []v1alpha1.ConfigMapReference,
	f *findings) error {
	allowed, err := r.managesConfigMap(ctx, name)
	if err == nil && !allowed {
		allowed, err = r.may(ctx, "get", "", "configmaps", name)
	}
	configMap, missing := &corev1.ConfigMap{}, false
	if err == nil && allowed {
		if err = r.reader.Get(ctx, r.key(name), configMap); apierrors.IsNotFound(err) {
			missing, err = true, nil
		}
	}
	if err != nil {
		return fmt.Errorf("check a ConfigMap: %w", err)
	}
	for _, ref := range refs {
		switch {
		case !allowed:
			f.forbid(ref.Path, "you must be allowed to get the ConfigMap %q to refer to it", name)
		case missing:
			f.warn(ref.Path, "ConfigMap %q does not exist yet", name)
		default:
			checkContent(configMap, ref, f)
		}
	}
	return nil
}

func checkContent(configMap *corev1.ConfigMap, ref v1alpha1.ConfigMapReference, f *findings) {
	content, found := []byte(configMap.Data[ref.Ref.Key]), true
	if _, isText := configMap.Data[ref.Ref.Key]; !isText {
		content, found = configMap.BinaryData[ref.Ref.Key]
	}
	switch {
	case !found:
		f.warn(ref.Path.Child("key"), "ConfigMap %q has no key %q yet", configMap.Name, ref.Ref.Key)
	case ref.Replay && !recording.Valid(content):
		f.errs = append(f.errs, invalid(ref.Path.Child("key"),
			"must name an entry with a recording in JSON: a list of events, or an object with the events in its field "+
				"trajectory"))
	}
}

// checkSettings reads the session's UserSettings object into *settings, if the object exists. The
// session gets the Secrets of this object, so checkSettings forbids the session if the sender may
// neither use the object nor get every Secret of the namespace. Otherwise, it adds the inherited
// values.
func (r request) checkSettings(ctx context.Context, name string, settings *v1alpha1.UserSettings, f *findings) error {
	path := field.NewPath("spec", "userSettingsName")
	err := r.reader.Get(ctx, r.key(name), settings)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("get the UserSettings: %w", err)
	}
	allowed, err := r.may(ctx, "use", v1alpha1.SchemeGroupVersion.Group, "usersettings", name)
	if err == nil && !allowed {
		allowed, err = r.mayGetEverySecret(ctx)
	}
	switch {
	case err != nil:
		return err
	case !allowed:
		f.forbid(path, "a session gets the Secrets of its settings: you must be allowed to use the UserSettings %q, "+
			"or to get every Secret of the namespace", name)
	case missing:
		f.warn(path, "UserSettings %q do not exist yet", name)
	default:
		return r.inherit(ctx, settings)
	}
	return nil
}
