package lifecycletest

import (
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Ref returns a reference to the key "key" of a Secret.
func Ref(name string) *v1alpha1.SecretKeyRef { return &v1alpha1.SecretKeyRef{Name: name, Key: "key"} }

// EverySecret returns a UserSettingsSpec with values in all fields that can refer to a Secret.
func EverySecret() v1alpha1.UserSettingsSpec {
	return v1alpha1.UserSettingsSpec{
		LLMAPIKeyRef: Ref("llm"), SearchAPIKeyRef: Ref("search"), SandboxAPIKeyRef: Ref("sandbox"),
		SecretsStore: &v1alpha1.SecretsStore{
			ProviderTokens: []v1alpha1.ProviderToken{
				{Provider: v1alpha1.GitHub, TokenRef: Ref("github"), UserID: ptr.To("ada"), Host: ptr.To("git.example.com")},
				{Provider: v1alpha1.GitLab, TokenRef: Ref("gitlab")},
			},
			CustomSecrets: []v1alpha1.CustomSecret{{Name: "NPM_TOKEN", SecretRef: *Ref("npm"),
				Description: ptr.To("for publishing")}},
		},
		MCPConfig: &v1alpha1.MCPConfig{
			SSEServers: []v1alpha1.MCPRemoteServer{{URL: "https://sse.example.com", APIKeyRef: Ref("sse")}},
			SHTTPServers: []v1alpha1.MCPRemoteServer{{URL: "https://shttp.example.com", APIKeyRef: Ref("shttp")},
				{URL: "https://open.example.com"}},
			StdioServers: []v1alpha1.MCPStdioServer{{Name: "files", Command: "mcp-files", Args: []string{"--root", "/workspace"},
				Env: []v1alpha1.MCPEnvVar{
					{Name: "PLAIN", Value: ptr.To("yes")}, {Name: "TOKEN", SecretRef: Ref("stdio")},
				}}},
		},
	}
}

// ImageIn returns an image that is stored in a ConfigMap.
func ImageIn(configMap, key string) v1alpha1.ConversationImage {
	return v1alpha1.ConversationImage{ConfigMapKeyRef: &v1alpha1.ConfigMapKeyRef{Name: configMap, Key: key},
		MediaType: ptr.To("image/png")}
}

// ImageAt returns an image at a URL.
func ImageAt(url string) v1alpha1.ConversationImage { return v1alpha1.ConversationImage{URL: &url} }
