package settings

import (
	"context"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

// Effective returns the settings with the values that they inherit. It adds no values if the
// UserSettings named in inheritFrom do not exist or have an inheritFrom of their own. The session's
// status reports this problem.
func Effective(ctx context.Context, c cluster.API, settings *v1alpha1.UserSettings) (*v1alpha1.UserSettings, error) {
	if settings.Spec.InheritFrom == nil {
		return settings, nil
	}
	name := types.NamespacedName{Namespace: settings.Namespace, Name: *settings.Spec.InheritFrom}
	inherited, err := c.Settings(ctx, name)
	switch {
	case apierrors.IsNotFound(err) || err == nil && inherited.Spec.InheritFrom != nil:
		return settings, nil
	case err != nil:
		return nil, cluster.Refusal(ctx, err, nil)
	}
	effective := *settings
	effective.Spec = *settings.Spec.Inherit(&inherited.Spec)
	return &effective, nil
}

// inheritance compares a user's own settings with the effective settings.
type inheritance struct {
	own, effective *v1alpha1.UserSettingsSpec
	// ownFields and effectiveFields are the JSON forms of own and effective.
	ownFields, effectiveFields map[string]any
}

func newInheritance(own, effective *v1alpha1.UserSettingsSpec) (i inheritance, err error) {
	i = inheritance{own: own, effective: effective}
	if i.ownFields, err = runtime.DefaultUnstructuredConverter.ToUnstructured(own); err == nil {
		i.effectiveFields, err = runtime.DefaultUnstructuredConverter.ToUnstructured(effective)
	}
	return i, err
}

// inherited reports whether a setting, or a part of it, has an inherited value.
func (i inheritance) inherited(setting rest.Setting) bool {
	return !same(setting.Spec, i.ownFields[setting.Spec], i.effectiveFields[setting.Spec])
}

// names lists the settings with inherited values.
func (i inheritance) names() []string {
	names := []string{}
	for _, setting := range rest.SettingsOf(&rest.Settings{}) {
		if i.inherited(setting) {
			names = append(names, setting.Name)
		}
	}
	return names
}

// modelFields are the settings of a model. A request that changes the model ends the inheritance of
// these settings. All their values in the request are then stored, even values that equal the
// inherited values.
var modelFields = []string{"llmModel", "llmBaseURL", "llmReasoningEffort", "llmTemperature"}

// changes returns the part of a request that does not repeat inherited values. Clients post whole
// responses back, and an inherited value must not become the user's own value.
func (i inheritance) changes(request []rest.Setting) (changes []rest.Setting) {
	ownModel := i.changesModel(request)
	for _, setting := range request {
		switch field := setting.Value.(type) {
		case *rest.Field[rest.UserSecrets]:
			if field.Value != nil {
				secrets := rest.Set(rest.UserSecrets{ProviderTokens: i.changedTokens(field.Value.ProviderTokens),
					CustomSecrets: field.Value.CustomSecrets})
				setting.Value = &secrets
			}
		case *rest.Field[rest.MCPConfig]:
			if field.Value != nil {
				tools := rest.Set(i.changedTools(field.Value))
				setting.Value = &tools
			}
		case plain:
			kept := ownModel && slices.Contains(modelFields, setting.Spec)
			if !kept && i.repeats(setting, field) {
				continue
			}
		}
		changes = append(changes, setting)
	}
	return changes
}

func (i inheritance) repeats(setting rest.Setting, field plain) bool {
	value, present := field.Stored()
	return present && i.inherited(setting) && field.Shown(value) == field.Shown(i.effectiveFields[setting.Spec])
}

// changesModel reports whether a request changes the model, the base URL or the API key. A change
// of the reasoning effort or the temperature does not end the inheritance of a model.
func (i inheritance) changesModel(request []rest.Setting) bool {
	return slices.ContainsFunc(request, func(setting rest.Setting) bool {
		switch field := setting.Value.(type) {
		case *rest.Key:
			return setting.Spec == "llmAPIKeyRef" && field.IsSet()
		case plain:
			value, _ := field.Stored()
			return (setting.Spec == "llmModel" || setting.Spec == "llmBaseURL") && value != nil && !i.repeats(setting, field)
		}
		return false
	})
}

// changedTokens returns the entries that do not repeat an inherited token.
func (i inheritance) changedTokens(request map[string]*rest.ProviderToken) map[string]*rest.ProviderToken {
	own, effective := secretsOf(i.own).ProviderTokens, secretsOf(i.effective).ProviderTokens
	changed := maps.Clone(request)
	maps.DeleteFunc(changed, func(name string, token *rest.ProviderToken) bool {
		ofProvider := func(t v1alpha1.ProviderToken) bool { return string(t.Provider) == name }
		at := slices.IndexFunc(effective, ofProvider)
		return token != nil && at >= 0 && !slices.ContainsFunc(own, ofProvider) && !token.Token.IsSet() &&
			repeatsText(token.Host, effective[at].Host) && repeatsText(token.UserID, effective[at].UserID)
	})
	return changed
}

func repeatsText(field rest.Field[string], inherited *string) bool {
	return !field.Present || ptr.Deref(field.Value, "") == ptr.Deref(inherited, "")
}

// changedTools returns the tool servers that do not repeat an inherited tool server.
func (i inheritance) changedTools(request *rest.MCPConfig) rest.MCPConfig {
	own := ptr.Deref(i.own.MCPConfig, v1alpha1.MCPConfig{})
	effective := ptr.Deref(i.effective.MCPConfig, v1alpha1.MCPConfig{})
	remote := func(servers []rest.MCPRemoteServer, own, effective []v1alpha1.MCPRemoteServer) []rest.MCPRemoteServer {
		return slices.DeleteFunc(slices.Clone(servers), func(server rest.MCPRemoteServer) bool {
			same := func(s v1alpha1.MCPRemoteServer) bool { return s.URL == server.URL }
			return server.APIKey.Value == nil && slices.ContainsFunc(effective, same) && !slices.ContainsFunc(own, same)
		})
	}
	stdio := slices.DeleteFunc(slices.Clone(request.StdioServers), func(server rest.MCPStdioServer) bool {
		same := func(s v1alpha1.MCPStdioServer) bool { return s.Name == server.Name }
		at := slices.IndexFunc(effective.StdioServers, same)
		return at >= 0 && !slices.ContainsFunc(own.StdioServers, same) && repeatsStdio(server, effective.StdioServers[at])
	})
	return rest.MCPConfig{StdioServers: stdio,
		SSEServers:   remote(request.SSEServers, own.SSEServers, effective.SSEServers),
		SHTTPServers: remote(request.SHTTPServers, own.SHTTPServers, effective.SHTTPServers)}
}

func repeatsStdio(server rest.MCPStdioServer, inherited v1alpha1.MCPStdioServer) bool {
	for _, variable := range inherited.Env {
		if value, found := server.Env[variable.Name]; !found || value.Value != nil {
			return false
		}
	}
	return server.Command == inherited.Command && slices.Equal(server.Args, inherited.Args) &&
		len(server.Env) == len(inherited.Env)
}
