package v1alpha1

import "k8s.io/apimachinery/pkg/util/validation/field"

// SecretReference is one reference to a Secret, with its path in the object.
// +kubebuilder:object:generate=false
// +kubebuilder:ac:generate=false
type SecretReference struct {
	Path *field.Path
	Ref  SecretKeyRef
	// Condition is the condition of UserSettings that covers this reference.
	Condition string
}

type secretReferences []SecretReference

func (l *secretReferences) add(path *field.Path, ref *SecretKeyRef, condition string) {
	if ref != nil {
		*l = append(*l, SecretReference{Path: path, Ref: *ref, Condition: condition})
	}
}

// SecretReferences lists every reference to a Secret in the UserSettings.
func (u *UserSettings) SecretReferences() []SecretReference {
	var refs secretReferences
	spec, path := &u.Spec, field.NewPath("spec")
	refs.add(path.Child("sessionKeyRef"), spec.SessionKeyRef, ConditionSessionKeyReady)
	refs.add(path.Child("llmAPIKeyRef"), spec.LLMAPIKeyRef, ConditionLLMAPIKeyResolved)
	refs.add(path.Child("searchAPIKeyRef"), spec.SearchAPIKeyRef, ConditionSearchAPIKeyResolved)
	refs.add(path.Child("sandboxAPIKeyRef"), spec.SandboxAPIKeyRef, ConditionSandboxAPIKeyResolved)
	if store := spec.SecretsStore; store != nil {
		tokens, secrets := path.Child("secretsStore", "providerTokens"), path.Child("secretsStore", "customSecrets")
		for i, token := range store.ProviderTokens {
			refs.add(tokens.Index(i).Child("tokenRef"), token.TokenRef, ConditionProviderTokensResolved)
		}
		for i, secret := range store.CustomSecrets {
			refs.add(secrets.Index(i).Child("secretRef"), &secret.SecretRef, ConditionCustomSecretsResolved)
		}
	}
	refs.addMCP(path.Child("mcpConfig"), spec.MCPConfig)
	return refs
}

// SecretReferences lists every reference to a Secret in the Conversation itself, not in its
// UserSettings.
func (c *Conversation) SecretReferences() []SecretReference {
	var refs secretReferences
	refs.addMCP(field.NewPath("spec", "mcpConfig"), c.Spec.MCPConfig)
	return refs
}

func (l *secretReferences) addMCP(path *field.Path, config *MCPConfig) {
	if config == nil {
		return
	}
	for i, server := range config.SSEServers {
		l.add(path.Child("sseServers").Index(i).Child("apiKeyRef"), server.APIKeyRef, ConditionMCPKeysResolved)
	}
	for i, server := range config.StdioServers {
		env := path.Child("stdioServers").Index(i).Child("env")
		for j, variable := range server.Env {
			l.add(env.Index(j).Child("secretRef"), variable.SecretRef, ConditionMCPKeysResolved)
		}
	}
	for i, server := range config.SHTTPServers {
		l.add(path.Child("shttpServers").Index(i).Child("apiKeyRef"), server.APIKeyRef, ConditionMCPKeysResolved)
	}
}

// ConfigMapReference is one reference to a ConfigMap, with its path in the object.
// +kubebuilder:object:generate=false
// +kubebuilder:ac:generate=false
type ConfigMapReference struct {
	Path *field.Path
	Ref  ConfigMapKeyRef
	// Replay is true if the ConfigMap holds a recording. Otherwise it holds an image of a message.
	Replay bool
}

// ConfigMapReferences lists every ConfigMap that this conversation refers to: its replay and its
// images.
func (c *Conversation) ConfigMapReferences() []ConfigMapReference {
	path := field.NewPath("spec")
	var refs []ConfigMapReference
	if ref := c.Spec.ReplayJSONRef; ref != nil {
		refs = append(refs, ConfigMapReference{Path: path.Child("replayJSONRef"), Ref: *ref, Replay: true})
	}
	for i, image := range c.Spec.Images {
		if ref := image.ConfigMapKeyRef; ref != nil {
			refs = append(refs, ConfigMapReference{Path: path.Child("images").Index(i).Child("configMapKeyRef"), Ref: *ref})
		}
	}
	return refs
}
