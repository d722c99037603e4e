package main

import (
	"context"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

var (
	errAttemptEnded = answer.Refuse(http.StatusForbidden, "This attempt of the session has ended")
	// errAttemptUnknown means that the cache does not show the attempt yet. The cache shows the
	// attempt soon, because the manager records an attempt before it creates the attempt's pod.
	errAttemptUnknown = answer.Later(http.StatusServiceUnavailable,
		"The archive does not know this attempt yet; retry later", time.Second)
)

// noPod is the condition of a Conversation without a pod. All such Conversations in the cache share
// this slice, which saves memory.
var noPod = []metav1.Condition{{Type: v1alpha1.ConditionPodReady, Reason: v1alpha1.ReasonNoPod}}

// CheckAttempt returns an error for an attempt that has ended.
func (c *conversations) CheckAttempt(ctx context.Context, uid string, attempt int) error {
	found, err := c.find(ctx, uid)
	switch {
	case err != nil:
		return answer.Unavailable
	case found == nil:
		return errAttemptEnded
	}
	return checkAttempt(&found.Status, attempt)
}

// checkAttempt accepts an attempt whose process may still run, and returns an error for any other
// attempt. A pod may upload its last state after the status shows the session as stopped. The
// attempt of a stopped session therefore ends only when its process has exited or its pod is gone.
// While the current attempt starts, the archive also accepts the previous attempt, whose pod may
// still upload. After the first write of the current attempt, store.claim refuses the previous
// attempt.
func checkAttempt(s *v1alpha1.ConversationStatus, attempt int) error {
	current := max(1, int(s.Attempt))
	// The process of an Idle or Completed session has exited, even if the pod still exists. If the
	// UserSettings are missing, the session has no pod, but its attempt has not ended: the session
	// later starts as the same attempt.
	exited := s.Reason == v1alpha1.ReasonIdle || s.Reason == v1alpha1.ReasonCompleted
	gone := s.Reason != v1alpha1.ReasonSettingsMissing && s.ReportsNoPod()
	ended := s.State == v1alpha1.StateStopped && (exited || gone)
	switch {
	case attempt > current:
		return errAttemptUnknown
	case ended, attempt < current-1, attempt < current && s.State == v1alpha1.StateRunning:
		return errAttemptEnded
	}
	return nil
}
