package rest

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Keys are kept one to a Secret, called <owner>-<what>. No ending below is the end of another one behind a dash, so that no
// two owners ever share a Secret, whatever they are called; session and session-key are the operator's own.
const (
	llmKey        = "llm-api-key"
	searchKey     = "search-api-key"
	sandboxKey    = "sandbox-api-key"
	providerKey   = "token-"  // and the provider
	customKey     = "secret-" // and a hash of the secret's name
	settingsTools = "mcp-"    // and a hash of what the key is for
	sessionTools  = "tool-"   // and a hash of what the key is for
	sessionReplay = "replay-" // and a hash of the replay, and a random part
)

// keySecretKey is where a key stands in its Secret.
const keySecretKey = "key"

// keyValue is a key to be written.
type keyValue struct{ secret, value string }

// digest of a name that may hold any character, short enough for the name of a Secret.
func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// keyring names the Secrets of one owner.
type keyring struct {
	owner string
	// tools is the ending for keys of tool servers.
	tools string
}

func settingsKeys(name string) keyring     { return keyring{name, settingsTools} }
func conversationKeys(name string) keyring { return keyring{name, sessionTools} }

func (k keyring) secret(what string) string { return k.owner + "-" + what }
func (k keyring) provider(name string) string {
	return k.secret(providerKey + strings.ReplaceAll(name, "_", "-"))
}
func (k keyring) custom(name string) string { return k.secret(customKey + digest(name)) }
func (k keyring) remoteTool(kind, url string) string {
	return k.secret(k.tools + digest(kind, url))
}
func (k keyring) toolVariable(server, name string) string {
	return k.secret(k.tools + digest("env", server, name))
}

// ofSettings are all new keys of a request.
func (k keyring) ofSettings(s *Settings) []keyValue {
	var keys []keyValue
	add := func(secret string, key Key) {
		if key.isSet() {
			keys = append(keys, keyValue{secret, *key.Value})
		}
	}
	add(k.secret(llmKey), s.LLMAPIKey)
	add(k.secret(searchKey), s.SearchAPIKey)
	add(k.secret(sandboxKey), s.SandboxAPIKey)
	for _, name := range sortedKeys(s.SecretsStore.ProviderTokens) {
		if token := s.SecretsStore.ProviderTokens[name]; token != nil {
			add(k.provider(name), token.Token)
		}
	}
	for _, name := range sortedKeys(s.SecretsStore.CustomSecrets) {
		if secret := s.SecretsStore.CustomSecrets[name]; secret != nil {
			add(k.custom(name), secret.Secret)
		}
	}
	if s.MCPConfig.Value != nil {
		keys = append(keys, k.ofTools(s.MCPConfig.Value)...)
	}
	return keys
}

// ofTools are the new keys of tool servers.
func (k keyring) ofTools(config *MCPConfig) []keyValue {
	var keys []keyValue
	add := func(secret string, key Key) {
		if key.isSet() {
			keys = append(keys, keyValue{secret, *key.Value})
		}
	}
	for _, server := range config.SSEServers {
		add(k.remoteTool(sse, server.URL), server.APIKey)
	}
	for _, server := range config.SHTTPServers {
		add(k.remoteTool(shttp, server.URL), server.APIKey)
	}
	for _, server := range config.StdioServers {
		for _, variable := range server.Env {
			add(k.toolVariable(server.Name, variable.Name), variable.Value)
		}
	}
	return keys
}

// The kinds of remote tool servers.
const (
	sse   = "sse"
	shttp = "shttp"
)

// buildKeySecret is the Secret with one key. Its owner is named right away, so that the operator need not adopt it.
func buildKeySecret(key keyValue, owner metav1.Object, kind, label string, now time.Time) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: ownedMeta(key.secret, owner, kind, label, now),
		Type:       v1alpha1.SecretTypeUserKey,
		Data:       map[string][]byte{keySecretKey: []byte(key.value)},
	}
}

// buildReplay is the ConfigMap with the events of a conversation.
func buildReplay(ref v1alpha1.ConfigMapKeyRef, events string, owner *v1alpha1.Conversation, now time.Time) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: ownedMeta(ref.Name, owner, "Conversation", v1alpha1.LabelConversation, now),
		Immutable:  ptr.To(true),
		Data:       map[string]string{ref.Key: events},
	}
}

// ownedMeta does not ask that the owner's deletion waits: that would need rights on the owner's finalizers.
func ownedMeta(name string, owner metav1.Object, kind, label string, now time.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: owner.GetNamespace(),
		Name:      name,
		Labels: map[string]string{
			v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
			label:                   owner.GetName(),
		},
		Annotations: map[string]string{v1alpha1.AnnotationWrittenAt: now.UTC().Format(time.RFC3339)},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.SchemeGroupVersion.String(),
			Kind:       kind,
			Name:       owner.GetName(),
			UID:        owner.GetUID(),
			Controller: ptr.To(true),
		}},
	}
}
