package webhook

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// LimitsPath is the URL path of limitsValidator.
const LimitsPath = "/limits-parley-dev-v1alpha1-conversation"

// limitsValidator limits the number of Conversations of a user, and their size. It reads only the
// cache, because the API server calls it for every new Conversation. The cache may be stale, so
// concurrent requests can exceed the limit by a few.
type limitsValidator struct {
	cache  client.Reader
	counts *conversationCounts
}

var _ admission.Validator[*v1alpha1.Conversation] = &limitsValidator{}

func (v *limitsValidator) ValidateCreate(ctx context.Context, c *v1alpha1.Conversation) (admission.Warnings, error) {
	if size := textSize(&c.Spec); size > maxConversationText {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the texts of spec have %d bytes, at most %d are "+
			"allowed: shorten them, or use ConfigMaps for images", size, maxConversationText))
	}
	admitted, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	user := types.NamespacedName{Namespace: admitted.Namespace, Name: c.Spec.UserSettingsName}
	count := v.counts.of(user)
	settings := &v1alpha1.UserSettings{}
	if err := v.cache.Get(ctx, user, settings); client.IgnoreNotFound(err) != nil {
		return nil, v.ignore(ctx, err)
	}
	name, class, err := classOf(ctx, v.cache, c.Spec.SessionClassName, settings.Spec.SessionClassName)
	if err != nil {
		return nil, v.ignore(ctx, err)
	}
	limit := class.Spec.MaxConversations()
	if count < limit {
		return nil, nil
	}
	// Admit a repeated request for an existing Conversation, because it adds no Conversation. The
	// API server then refuses the name, and the facade uses the existing Conversation.
	if v.cache.Get(ctx, types.NamespacedName{Namespace: admitted.Namespace, Name: c.Name},
		&v1alpha1.Conversation{}) == nil {
		return nil, nil
	}
	return nil, refusal("Conversation", c.Name, field.ErrorList{{Type: field.ErrorTypeTooMany,
		Field: "spec.userSettingsName", BadValue: field.OmitValueType{}, Detail: fmt.Sprintf("SessionClass %s allows %d "+
			"Conversations per user (maxConversationsPerUser), and UserSettings %s have %d: delete Conversations that are "+
			"no longer needed", name, limit, user.Name, count)}})
}

// ignore admits a Conversation that cannot be checked, as the API server does if no manager answers.
func (*limitsValidator) ignore(ctx context.Context, err error) error {
	logf.FromContext(ctx).Error(err, "Cannot check the limits of a Conversation")
	return nil
}

func (*limitsValidator) ValidateUpdate(context.Context, *v1alpha1.Conversation, *v1alpha1.Conversation) (
	admission.Warnings, error) {
	return nil, nil
}

func (*limitsValidator) ValidateDelete(context.Context, *v1alpha1.Conversation) (admission.Warnings, error) {
	return nil, nil
}

// conversationCounts counts the cached Conversations of each UserSettings.
type conversationCounts struct {
	mu     sync.Mutex
	byUser map[types.NamespacedName]int
}

// countConversations returns counts that change with the cache.
func countConversations(ctx context.Context, objects cache.Cache) (*conversationCounts, error) {
	counts := &conversationCounts{byUser: map[types.NamespacedName]int{}}
	informer, err := objects.GetInformer(ctx, &v1alpha1.Conversation{})
	if err != nil {
		return nil, err
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { counts.add(object, 1) },
		UpdateFunc: func(before, after any) { // a recreated Conversation may belong to another user
			counts.add(after, 1)
			counts.add(before, -1)
		},
		DeleteFunc: func(object any) {
			if unknown, is := object.(toolscache.DeletedFinalStateUnknown); is {
				object = unknown.Obj
			}
			counts.add(object, -1)
		},
	})
	return counts, err
}

func (n *conversationCounts) add(object any, change int) {
	c, is := object.(*v1alpha1.Conversation)
	if !is {
		return
	}
	user := types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.UserSettingsName}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byUser[user] += change; n.byUser[user] <= 0 {
		delete(n.byUser, user)
	}
}

func (n *conversationCounts) of(user types.NamespacedName) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byUser[user]
}
