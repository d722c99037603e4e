package controllers

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// mostShared bounds how many texts are shared, and longestShared how long they are: names and words, no messages of users.
	mostShared    = 4096
	longestShared = 64
)

// sharedTexts holds one copy of each text that many objects in the cache have in common: labels, types and reasons of
// conditions, images. Else every object brings its own, and with thousands of sessions they are a good part of the cache.
type sharedTexts struct {
	mu    sync.RWMutex
	texts map[string]string
}

var shared = &sharedTexts{texts: map[string]string{}}

// of is the text, the same memory for each that is equal.
func (s *sharedTexts) of(text string) string {
	if text == "" || len(text) > longestShared {
		return text
	}
	s.mu.RLock()
	known, is := s.texts[text]
	full := len(s.texts) >= mostShared
	s.mu.RUnlock()
	if is {
		return known
	}
	if full {
		return text
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, is := s.texts[text]; is {
		return known
	}
	text = strings.Clone(text) // not a part of something larger
	s.texts[text] = text
	return text
}

// sharedLabels are those of which there are few values.
var sharedLabels = []string{
	v1alpha1.LabelManagedBy, v1alpha1.LabelComponent, v1alpha1.LabelSessionClass, v1alpha1.LabelWorkspace, v1alpha1.LabelAttempt,
}

func share[T ~string](texts ...*T) {
	for _, text := range texts {
		*text = T(shared.of(string(*text)))
	}
}

// shareMetadata of an object: what says whose it is, not which one.
func shareMetadata(o client.Object) {
	o.SetNamespace(shared.of(o.GetNamespace()))
	if labels := o.GetLabels(); labels != nil {
		own := make(map[string]string, len(labels))
		for key, value := range labels {
			own[shared.of(key)] = value
		}
		for _, key := range sharedLabels {
			if value, is := own[key]; is {
				own[key] = shared.of(value)
			}
		}
		o.SetLabels(own)
	}
	owners := o.GetOwnerReferences()
	for i := range owners {
		share(&owners[i].APIVersion, &owners[i].Kind)
	}
	o.SetOwnerReferences(owners)
}

// shareStatus keeps of a pod's status what is read, and shares what all pods say.
func shareStatus(status *corev1.PodStatus) {
	status.PodIPs, status.HostIPs, status.HostIP = nil, nil, ""
	share(&status.Phase)
	share(&status.QOSClass)
	conditions := make([]corev1.PodCondition, 0, len(status.Conditions)) // decoded ones have room to grow
	for _, c := range status.Conditions {
		share(&c.Type)
		share(&c.Status)
		share(&c.Reason)
		conditions = append(conditions, c)
	}
	status.Conditions = conditions
	for _, containers := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for i := range containers {
			c := &containers[i]
			*c = corev1.ContainerStatus{
				Name: shared.of(c.Name), State: c.State, LastTerminationState: c.LastTerminationState, Ready: c.Ready, Started: c.Started, RestartCount: c.RestartCount,
			}
		}
	}
}

// shareConversation shares what all Conversations say, and a message that one of them says several times.
func shareConversation(status *v1alpha1.ConversationStatus) {
	share(&status.State)
	share(&status.Reason)
	for i := range status.Conditions {
		c := &status.Conditions[i]
		share(&c.Type, &c.Reason)
		share(&c.Status)
		if c.Message == status.Message {
			c.Message = status.Message
		}
	}
}
