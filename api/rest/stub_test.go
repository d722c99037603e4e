package rest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	ac "github.com/parley-dev/parley/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

const stubKey = "key-of-the-stub"

// stubCluster is no cluster. It agrees to everything and keeps nothing, so that what is before it can be fuzzed.
type stubCluster struct{ conversations []v1alpha1.Conversation }

var _ cluster = &stubCluster{}

func stubSettings() *v1alpha1.UserSettings {
	return &v1alpha1.UserSettings{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ada", UID: "1"},
		Spec:       v1alpha1.UserSettingsSpec{LLMModel: ptr.To("ollama/small")},
	}
}

func (c *stubCluster) usersByKeyHash(_ context.Context, hash string) ([]v1alpha1.UserSettings, error) {
	if sum := sha256.Sum256([]byte(stubKey)); hash == hex.EncodeToString(sum[:]) {
		return []v1alpha1.UserSettings{*stubSettings()}, nil
	}
	return nil, nil
}

func (c *stubCluster) settings(context.Context, types.NamespacedName) (*v1alpha1.UserSettings, error) {
	return stubSettings(), nil
}

func (c *stubCluster) applySettings(_ context.Context, config *ac.UserSettingsApplyConfiguration, _ applyOptions) (*v1alpha1.UserSettings, error) {
	defaults(config.Spec)
	if config.Spec.LLMModel == nil {
		config.Spec.LLMModel = stubSettings().Spec.LLMModel
	}
	settings := &v1alpha1.UserSettings{}
	return settings, convert(config, settings)
}

func (c *stubCluster) writeSecret(context.Context, *corev1.Secret) error        { return nil }
func (c *stubCluster) createConfigMap(context.Context, *corev1.ConfigMap) error { return nil }

func (c *stubCluster) createConversation(context.Context, *v1alpha1.Conversation, bool) error {
	return nil
}

func (c *stubCluster) conversation(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error) {
	return &v1alpha1.Conversation{}, nil
}

func (c *stubCluster) cachedConversation(context.Context, types.NamespacedName) (*v1alpha1.Conversation, error) {
	return &v1alpha1.Conversation{}, nil
}

func (c *stubCluster) conversationsOf(context.Context, types.NamespacedName) ([]v1alpha1.Conversation, error) {
	return c.conversations, nil
}

func (c *stubCluster) patchConversation(context.Context, *v1alpha1.Conversation, []byte) error {
	return nil
}

func (c *stubCluster) deleteConversation(context.Context, *v1alpha1.Conversation) error { return nil }
func (c *stubCluster) ready(context.Context) error                                      { return nil }
