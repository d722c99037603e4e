package controllers

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// starts is what this process knows of starts that the cache does not show. Losing it costs
// requests, and nothing else: what it says would otherwise be asked.
type starts struct {
	// young are the UIDs of Conversations that came into being before the eyes of this process, and
	// of which nobody wrote anything that it knows of.
	young sync.Map
	// made are the pods, by their Conversation, that were made and that the cache did not show yet.
	made sync.Map
	// due are the Conversations that are looked at soon, whatever happens to their pods until then.
	due sync.Map
	// refused are the Conversations, by name, of which the API server refused an object when they
	// last tried to start.
	refused sync.Map
}

// refusal of an object that a Conversation, as it was then, needs.
type refusal struct {
	uid        types.UID
	generation int64
	err        error
	// first and at are when it was refused first, and last, without a start in between.
	first, at time.Time
}

// madePod is the pod of an attempt, and when it was made.
type madePod struct {
	uid     types.UID
	attempt int32
	at      time.Time
}

// awaitPod is how long the cache may take to show a pod that was made. After that it is looked for.
const awaitPod = 10 * time.Second

// ofConversations notes those that come into being. Those of the first list may have had a life
// before.
func (s *starts) ofConversations() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool {
			if !e.IsInInitialList {
				s.young.Store(e.Object.GetUID(), true)
			}
			return true
		},
		DeleteFunc: func(e event.DeleteEvent) bool {
			s.young.Delete(e.Object.GetUID())
			return true
		},
	}
}

// ofPods notes those that show, and those that are gone: they are not to be waited for. While a
// look at its Conversation is due, that a pod is under way is no reason for another.
func (s *starts) ofPods() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool {
			pod, isPod := e.Object.(*corev1.Pod)
			if e.IsInInitialList || !isPod || !underWay(pod) || !s.isDueFor(pod) {
				return true
			}
			s.waitsNoMore(pod)
			return false
		},
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, wasPod := e.ObjectOld.(*corev1.Pod)
			pod, isPod := e.ObjectNew.(*corev1.Pod)
			return !wasPod || !isPod || !underWay(pod) || !maps.Equal(before.Labels, pod.Labels) || !s.isDueFor(pod)
		},
		DeleteFunc: func(e event.DeleteEvent) bool {
			s.waitsNoMore(e.Object)
			return true
		},
	}
}

// ofSecrets leaves out that the Secret of a session came into being while a look at its
// Conversation is due: who made it goes on to make the pod.
func (s *starts) ofSecrets() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
		owner := owningConversation(e.Object)
		return e.IsInInitialList || owner == nil || e.Object.GetName() != v1alpha1.SessionName(owner.Name) ||
			!s.isDueFor(e.Object)
	}}
}

// underWay: a pod neither runs nor has a problem that is known. How far it is matters only if that
// lasts.
func underWay(pod *corev1.Pod) bool {
	scheduled := podCondition(pod, corev1.PodScheduled)
	if pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil || scheduled != nil &&
		scheduled.Status == corev1.ConditionFalse {
		return false
	}
	for _, containers := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range containers {
			waits := c.State.Waiting
			if waits != nil && (isImageProblem(waits.Reason) || isContainerProblem(waits.Reason)) || c.RestartCount > 0 ||
				c.State.Terminated != nil && c.State.Terminated.ExitCode != 0 || c.LastTerminationState.Terminated != nil {
				return false
			}
		}
	}
	return true
}

// looksSoon notes that a Conversation is about to be looked at again, and looks that it is.
func (s *starts) looksSoon(conversation types.NamespacedName) { s.due.Store(conversation, true) }
func (s *starts) looks(conversation types.NamespacedName)     { s.due.Delete(conversation) }

func (s *starts) isDue(conversation types.NamespacedName) bool {
	_, due := s.due.Load(conversation)
	return due
}

// isDueFor says whether a look at the Conversation is due that an object belongs to.
func (s *starts) isDueFor(o client.Object) bool {
	owner := owningConversation(o)
	return owner != nil && s.isDue(types.NamespacedName{Namespace: o.GetNamespace(), Name: owner.Name})
}

// first says, once, that nothing can have been done for a Conversation yet.
func (s *starts) first(c *v1alpha1.Conversation) bool {
	_, young := s.young.LoadAndDelete(c.UID)
	return young && unseen(c.Status)
}

// wrote notes that something is recorded of a Conversation.
func (s *starts) wrote(c *v1alpha1.Conversation) { s.young.Delete(c.UID) }

// makes notes that the pod of the present attempt is there.
func (s *starts) makes(c *v1alpha1.Conversation, now time.Time) {
	s.refused.Delete(client.ObjectKeyFromObject(c))
	s.made.Store(client.ObjectKeyFromObject(c), madePod{c.UID, attemptOf(c.Status), now})
}

// isRefusal: the API server refuses an object, and does so again if it is asked at once.
func isRefusal(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// refuses notes why a Conversation could not start.
func (s *starts) refuses(c *v1alpha1.Conversation, err error, now time.Time) {
	first := now
	if last, is := s.refusal(c); is {
		first = last.first
	}
	s.refused.Store(client.ObjectKeyFromObject(c), refusal{c.UID, c.Generation, err, first, now})
}

// refusal is why a Conversation as it is now could not start when it last tried, if that is so.
func (s *starts) refusal(c *v1alpha1.Conversation) (last refusal, is bool) {
	known, _ := s.refused.Load(client.ObjectKeyFromObject(c))
	last, is = known.(refusal)
	return last, is && last.uid == c.UID && last.generation == c.Generation
}

// waitsNoMore: nobody has to wait for a pod to show.
func (s *starts) waitsNoMore(pod client.Object) {
	if owner := owningConversation(pod); owner != nil {
		s.shown(types.NamespacedName{Namespace: pod.GetNamespace(), Name: owner.Name})
	}
}

// shown: the cache shows the pod of a Conversation, or that it is gone.
func (s *starts) shown(conversation types.NamespacedName) { s.made.Delete(conversation) }

// awaits says that the pod of the present attempt was made a moment ago, and is about to show.
func (s *starts) awaits(c *v1alpha1.Conversation, now time.Time) bool {
	known, ok := s.made.Load(client.ObjectKeyFromObject(c))
	if !ok {
		return false
	}
	pod := known.(madePod)
	return pod.uid == c.UID && pod.attempt == attemptOf(c.Status) && now.Sub(pod.at) < awaitPod
}

// unseen: nobody wrote this status, it is the one that a Conversation begins with.
func unseen(s v1alpha1.ConversationStatus) bool { return s.ObservedGeneration < 0 || s.State == "" }
