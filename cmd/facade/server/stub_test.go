package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
)

const stubKey = "key-of-the-stub"

// stubCluster accepts everything and stores nothing, for tests of the layers above it.
type stubCluster struct {
	conversations []v1alpha1.Conversation
	annotations   map[string]string
}

var _ cluster.API = &stubCluster{}

func stubSettings() *v1alpha1.UserSettings {
	return &v1alpha1.UserSettings{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ada", UID: "1"},
		Spec:       v1alpha1.UserSettingsSpec{LLMModel: ptr.To("ollama/small")},
	}
}

func (c *stubCluster) UsersByKeyHash(_ context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	if sum := sha256.Sum256([]byte(stubKey)); hash == hex.EncodeToString(sum[:]) {
		return []v1alpha1.UserSettings{*c.settings()}, nil
	}
	return nil, nil
}

func (c *stubCluster) UsersByOwner(context.Context, string) ([]v1alpha1.UserSettings, error) {
	return nil, nil
}

func (c *stubCluster) ReviewToken(context.Context, string) (string, []string, error) {
	return "", nil, nil
}

func (c *stubCluster) settings() *v1alpha1.UserSettings {
	settings := stubSettings()
	settings.Annotations = c.annotations
	return settings
}

func (c *stubCluster) Settings(context.Context, types.NamespacedName) (*v1alpha1.UserSettings, error) {
	return c.settings(), nil
}

func (c *stubCluster) Class(context.Context, string) (*v1alpha1.SessionClassSpec, error) {
	return &v1alpha1.SessionClassSpec{}, nil
}

func (c *stubCluster) Annotate(_ context.Context, _ *v1alpha1.UserSettings, name, value string) error {
	c.annotations = map[string]string{name: value}
	return nil
}

func (c *stubCluster) ApplySettings(_ context.Context, _ *v1alpha1.UserSettings, spec map[string]any,
	_ cluster.ApplyOptions) (map[string]any, error) {
	for _, setting := range rest.SettingsOf(&rest.Settings{}) {
		if spec[setting.Spec] == nil && setting.Default != nil {
			spec[setting.Spec] = setting.Default
		}
	}
	if spec["llmModel"] == nil {
		spec["llmModel"] = *stubSettings().Spec.LLMModel
	}
	return spec, nil
}

func (c *stubCluster) WriteSecret(context.Context, *corev1.Secret) error        { return nil }
func (c *stubCluster) CreateConfigMap(context.Context, *corev1.ConfigMap) error { return nil }

func (c *stubCluster) CreateConversation(context.Context, *v1alpha1.Conversation) error {
	return nil
}

func (c *stubCluster) Conversation(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error) {
	return &v1alpha1.Conversation{}, nil
}

func (c *stubCluster) CachedConversation(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error) {
	return &v1alpha1.Conversation{}, nil
}

func (c *stubCluster) WatchConversation(types.NamespacedName) (changed <-chan struct{}, stop func()) {
	return nil, func() {}
}

func (c *stubCluster) ConversationsOf(_ context.Context, _ *v1alpha1.UserSettings,
	look func([]v1alpha1.Conversation)) error {
	look(c.conversations)
	return nil
}

func (c *stubCluster) PatchConversation(context.Context, *v1alpha1.Conversation, []byte) error {
	return nil
}

func (c *stubCluster) DeleteConversation(context.Context, *v1alpha1.Conversation) error { return nil }
func (c *stubCluster) Ready(context.Context) error                                      { return nil }
func (c *stubCluster) Agents(context.Context) ([]string, error)                         { return nil, nil }
func (c *stubCluster) Models(context.Context, string) ([]string, error)                 { return nil, nil }
