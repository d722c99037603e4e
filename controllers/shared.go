package controllers

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// mostShared bounds how many values of a kind are shared, and longestShared how long texts are:
	// names and words, no messages of users.
	mostShared    = 4096
	longestShared = 64
)

// shared is what many objects in the cache have in common. Else every object brings its own, and
// with thousands of sessions that is a good part of the cache.
var shared struct {
	texts      sharedValues[string]             // labels, types and reasons of conditions, images
	containers sharedValues[[]corev1.Container] // of pods, as stripPod leaves them; nobody changes them
}

// sharedValues holds one copy of each value, by a text that says all that is in it.
type sharedValues[V any] struct {
	mu     sync.RWMutex
	values map[string]V
}

// of is the value of a text, the same memory for each that is equal.
func (s *sharedValues[V]) of(text string, value func(text string) V) V {
	s.mu.RLock()
	known, is := s.values[text]
	full := len(s.values) >= mostShared
	s.mu.RUnlock()
	if is {
		return known
	}
	if full {
		return value(text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, is := s.values[text]; is {
		return known
	}
	if s.values == nil {
		s.values = map[string]V{}
	}
	text = strings.Clone(text) // not a part of something larger
	s.values[text] = value(text)
	return s.values[text]
}

// sharedText is the text, the same memory for each that is equal.
func sharedText(text string) string {
	if text == "" || len(text) > longestShared {
		return text
	}
	return shared.texts.of(text, func(text string) string { return text })
}

// sharedLabels are those of which there are few values.
var sharedLabels = []string{
	v1alpha1.LabelManagedBy, v1alpha1.LabelComponent, v1alpha1.LabelSessionClass, v1alpha1.LabelWorkspace,
	v1alpha1.LabelAttempt,
}

func share[T ~string](texts ...*T) {
	for _, text := range texts {
		*text = T(sharedText(string(*text)))
	}
}

// shareMetadata of an object: what says whose it is, not which one.
func shareMetadata(o client.Object) {
	o.SetNamespace(sharedText(o.GetNamespace()))
	if labels := o.GetLabels(); labels != nil {
		own := make(map[string]string, len(labels))
		for key, value := range labels {
			own[sharedText(key)] = value
		}
		for _, key := range sharedLabels {
			if value, is := own[key]; is {
				own[key] = sharedText(value)
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
				Name: sharedText(c.Name), State: c.State, LastTerminationState: c.LastTerminationState, Ready: c.Ready,
				Started: c.Started, RestartCount: c.RestartCount,
			}
		}
	}
}

// shareConversation shares what all Conversations say, and a message that one of them says several
// times.
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
