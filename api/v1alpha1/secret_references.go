package v1alpha1

import "k8s.io/apimachinery/pkg/util/validation/field"

// SecretReference is one reference to a Secret and where in the object it stands.
// +kubebuilder:object:generate=false
// +kubebuilder:ac:generate=false
type SecretReference struct {
	Path *field.Path
	Ref  SecretKeyRef
	// Condition of UserSettings that reports on this reference.
	Condition string
}

// SecretReferences lists every Secret that these settings refer to.
func (u *UserSettings) SecretReferences() []SecretReference {
	spec, path := &u.Spec, field.NewPath("spec")
	var refs []SecretReference
	add := func(path *field.Path, ref *SecretKeyRef, condition string) {
		if ref != nil {
			refs = append(refs, SecretReference{Path: path, Ref: *ref, Condition: condition})
		}
	}
	add(path.Child("sessionKeyRef"), spec.SessionKeyRef, ConditionSessionKeyReady)
	add(path.Child("llmAPIKeyRef"), spec.LLMAPIKeyRef, ConditionLLMAPIKeyResolved)
	add(path.Child("searchAPIKeyRef"), spec.SearchAPIKeyRef, ConditionSearchAPIKeyResolved)
	add(path.Child("sandboxAPIKeyRef"), spec.SandboxAPIKeyRef, ConditionSandboxAPIKeyResolved)
	if store := spec.SecretsStore; store != nil {
		path := path.Child("secretsStore")
		for i, t := range store.ProviderTokens {
			add(path.Child("providerTokens").Index(i).Child("tokenRef"), t.TokenRef, ConditionProviderTokensResolved)
		}
		for i := range store.CustomSecrets {
			add(path.Child("customSecrets").Index(i).Child("secretRef"), &store.CustomSecrets[i].SecretRef,
				ConditionCustomSecretsResolved)
		}
	}
	return append(refs, spec.MCPConfig.secretReferences(path.Child("mcpConfig"))...)
}

// SecretReferences lists every Secret that this conversation itself refers to.
func (c *Conversation) SecretReferences() []SecretReference {
	return c.Spec.MCPConfig.secretReferences(field.NewPath("spec", "mcpConfig"))
}

func (m *MCPConfig) secretReferences(path *field.Path) []SecretReference {
	if m == nil {
		return nil
	}
	var refs []SecretReference
	add := func(path *field.Path, ref *SecretKeyRef) {
		if ref != nil {
			refs = append(refs, SecretReference{Path: path, Ref: *ref, Condition: ConditionMCPKeysResolved})
		}
	}
	for i, s := range m.SSEServers {
		add(path.Child("sseServers").Index(i).Child("apiKeyRef"), s.APIKeyRef)
	}
	for i, s := range m.StdioServers {
		for j, e := range s.Env {
			add(path.Child("stdioServers").Index(i).Child("env").Index(j).Child("secretRef"), e.SecretRef)
		}
	}
	for i, s := range m.SHTTPServers {
		add(path.Child("shttpServers").Index(i).Child("apiKeyRef"), s.APIKeyRef)
	}
	return refs
}
