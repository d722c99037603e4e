package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/managed"
)

// edit is the change that a request makes to settings.
type edit struct {
	// spec is the spec after the change, as JSON. It does not contain the fields that the request
	// resets to their defaults.
	spec map[string]any
	// touched are the settings that the request sets or resets.
	touched []rest.Setting
	// keys are the new keys. They are written before the spec, which refers to them.
	keys []managed.Key
	// llmKey is the new API key of the model; nil if there is none. The name of its Secret depends
	// on the other settings.
	llmKey *rest.Key

	owner string
	live  *v1alpha1.UserSettingsSpec
}

// newEdit returns the change that a request makes to the live settings. The parameter liveSpec is
// the spec of the live settings as JSON. The parameter requested lists every setting, with the
// value that the request gives it, if any.
func newEdit(live *v1alpha1.UserSettings, liveSpec map[string]any, requested []rest.Setting) (*edit, error) {
	e := &edit{spec: maps.Clone(liveSpec), owner: live.Name, live: &live.Spec}
	for _, setting := range requested {
		touched, err := e.set(setting)
		if err != nil {
			return nil, err
		}
		if touched {
			e.touched = append(e.touched, setting)
		}
	}
	if e.llmKey != nil {
		ref := e.storeKey(*e.llmKey, v1alpha1.ManagedLLMKey, e.llmKeyParts()...)
		return e, put(e.spec, "llmAPIKeyRef", ref)
	}
	return e, nil
}

// llmKeyParts returns name parts for the Secret that stores e.llmKey. This key must never reach the
// old endpoint. If the request also changes the endpoint, the Secret therefore has a new name. The
// new spec then changes the endpoint and the name of the Secret in one write.
func (e *edit) llmKeyParts() (parts []string) {
	model, _ := e.spec["llmModel"].(string)
	baseURL, _ := e.spec["llmBaseURL"].(string)
	endpoint := (&v1alpha1.UserSettingsSpec{LLMModel: &model, LLMBaseURL: &baseURL}).ModelEndpoint()
	if endpoint != "" {
		parts = []string{endpoint}
	}
	ref := e.live.LLMAPIKeyRef
	if ref != nil && ref.Name == v1alpha1.ManagedName(e.owner, v1alpha1.ManagedLLMKey, parts...) &&
		endpoint != e.live.ModelEndpoint() {
		parts = []string{endpoint, "changed"}
	}
	return parts
}

func (e *edit) set(setting rest.Setting) (touched bool, err error) {
	switch field := setting.Value.(type) {
	case *rest.Key:
		return e.key(setting, *field)
	case *rest.Field[rest.UserSecrets]:
		if field.Value == nil || len(field.Value.ProviderTokens) == 0 && len(field.Value.CustomSecrets) == 0 {
			return false, nil
		}
		err := put(e.spec, setting.Spec, e.secrets(field.Value))
		dropEmptyReferences(e.spec[setting.Spec])
		return true, err
	case *rest.Field[rest.MCPConfig]:
		if !field.Present {
			return false, nil
		}
		config, keys := managed.Tools(e.owner, v1alpha1.ManagedSettingsTool, field.Value, e.live.MCPConfig)
		e.keys = append(e.keys, keys...)
		if config != nil && len(config.SSEServers)+len(config.StdioServers)+len(config.SHTTPServers) == 0 {
			config = nil
		}
		return true, put(e.spec, setting.Spec, config)
	case plain:
		value, present := field.Stored()
		switch {
		case !present:
			return false, nil
		case value == nil:
			delete(e.spec, setting.Spec)
		default:
			e.spec[setting.Spec] = value
		}
		return true, nil
	}
	return false, fmt.Errorf("setting %s has an unknown type: %T", setting.Name, setting.Value)
}

// plain is a field that is stored in the spec itself.
type plain interface {
	Stored() (value any, present bool)
	Shown(stored any) any
}

func (e *edit) key(setting rest.Setting, key rest.Key) (touched bool, err error) {
	switch {
	case key.IsSet() && managedKind(setting) == v1alpha1.ManagedLLMKey:
		e.llmKey = &key
		return true, nil
	case key.IsSet():
		return true, put(e.spec, setting.Spec, e.storeKey(key, managedKind(setting)))
	case key.IsCleared():
		delete(e.spec, setting.Spec)
		return true, nil
	}
	return false, nil
}

// managedKind returns the kind of the Secret that stores a key. The kind is the name of the setting
// in the HTTP API, with hyphens instead of underscores.
func managedKind(setting rest.Setting) v1alpha1.ManagedKind {
	return v1alpha1.ManagedKind(strings.ReplaceAll(setting.Name, "_", "-"))
}

func (e *edit) storeKey(key rest.Key, kind v1alpha1.ManagedKind, of ...string) *v1alpha1.SecretKeyRef {
	k := managed.Key{Secret: v1alpha1.ManagedName(e.owner, kind, of...), Value: *key.Value}
	e.keys = append(e.keys, k)
	return k.Ref()
}

// put sets a field of a JSON spec; nil deletes it.
func put[T any](spec map[string]any, field string, part *T) error {
	if part == nil {
		delete(spec, field)
		return nil
	}
	value, err := runtime.DefaultUnstructuredConverter.ToUnstructured(part)
	if err != nil {
		return fmt.Errorf("convert %s: %w", field, err)
	}
	spec[field] = value
	return nil
}

// secrets merges the secrets of the request into the stored secrets, entry by entry. A stored entry
// that the request does not name stays. An entry that is null in the request is removed.
func (e *edit) secrets(request *rest.UserSecrets) *v1alpha1.SecretsStore {
	store := &v1alpha1.SecretsStore{}
	if e.live.SecretsStore != nil {
		store = e.live.SecretsStore.DeepCopy()
	}
	store.ProviderTokens = merge(store.ProviderTokens, request.ProviderTokens,
		func(t v1alpha1.ProviderToken) string { return string(t.Provider) },
		func(entry *v1alpha1.ProviderToken, name string, requested *rest.ProviderToken) {
			entry.Provider = v1alpha1.GitProvider(name)
			if requested.Token.IsSet() {
				entry.TokenRef = e.storeKey(requested.Token, v1alpha1.ManagedToken, name)
			}
			if requested.UserID.Present {
				entry.UserID = requested.UserID.Value
			}
			if requested.Host.Present {
				entry.Host = requested.Host.Value
			}
		})
	store.CustomSecrets = merge(store.CustomSecrets, request.CustomSecrets,
		func(s v1alpha1.CustomSecret) string { return s.Name },
		func(entry *v1alpha1.CustomSecret, name string, requested *rest.CustomSecret) {
			entry.Name = name
			if requested.Secret.IsSet() {
				entry.SecretRef = *e.storeKey(requested.Secret, v1alpha1.ManagedCustomSecret, name)
			}
			if requested.Description.Present {
				entry.Description = requested.Description.Value
			}
		})
	if len(store.ProviderTokens) == 0 && len(store.CustomSecrets) == 0 {
		return nil
	}
	return store
}

// dropEmptyReferences removes the field secretRef from secrets that have no value yet. The Go field
// is not a pointer, so it is encoded even if it is empty.
func dropEmptyReferences(store any) {
	fields, _ := store.(map[string]any)
	secrets, _ := fields["customSecrets"].([]any)
	for _, item := range secrets {
		secret := item.(map[string]any)
		if ref, _ := secret["secretRef"].(map[string]any); ref["name"] == "" {
			delete(secret, "secretRef")
		}
	}
}

func merge[E, S any](list []E, requested map[string]*S, name func(E) string, change func(entry *E, name string,
	requested *S)) []E {
	for _, key := range slices.Sorted(maps.Keys(requested)) {
		at := slices.IndexFunc(list, func(e E) bool { return name(e) == key })
		switch {
		case requested[key] == nil && at >= 0:
			list = slices.Delete(list, at, at+1)
			continue
		case requested[key] == nil:
			continue
		case at < 0:
			at = len(list)
			list = append(list, *new(E))
		}
		change(&list[at], key, requested[key])
	}
	return list
}
