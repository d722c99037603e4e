package lifecycle

import (
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/lifecycletest"
)

type (
	aConversation = lifecycletest.Conversation
	aPod          = lifecycletest.Pod
)

var (
	makeConversation = lifecycletest.MakeConversation
	podOf            = lifecycletest.PodOf
	at               = lifecycletest.At
	metaTime         = lifecycletest.MetaTime
)

func boundsOf(spec *v1alpha1.ConversationSpec) Bounds {
	b := Bounds{IdleTimeout: spec.IdleTimeout.Duration, StartDeadline: spec.StartDeadline.Duration,
		MaxDuration: 24 * time.Hour, MaxRestarts: 5}
	if spec.MaxDuration != nil {
		b.MaxDuration = spec.MaxDuration.Duration
	}
	return b
}
