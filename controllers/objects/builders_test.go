package objects

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/lifecycletest"
)

type aConversation = lifecycletest.Conversation

var (
	makeConversation = lifecycletest.MakeConversation
	at               = lifecycletest.At
	ref              = lifecycletest.Ref
	everySecret      = lifecycletest.EverySecret
	imageIn          = lifecycletest.ImageIn
	imageAt          = lifecycletest.ImageAt
)

func startOf(c *v1alpha1.Conversation, settings v1alpha1.UserSettingsSpec) *Start {
	start := &Start{
		Settings: &settings, Class: Class{Name: v1alpha1.DefaultSessionClass}, Workspace: v1alpha1.WorkspaceScratch,
		Secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SessionName(c.Name)},
			Data: map[string][]byte{session.DocumentFile: nil, session.KeyFile: nil, session.LLMAPIKeyFile: nil,
				"mcp.stdio.0.1": nil},
		},
	}
	if c.Spec.Workspace != nil {
		start.Workspace = v1alpha1.WorkspaceOwn
	}
	return start
}

func classAllowing(name string, ranges ...string) Class {
	return Class{name, v1alpha1.SessionClassSpec{Network: &v1alpha1.SessionNetwork{EgressAllow: ranges}}}
}
