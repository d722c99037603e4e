package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// act creates or removes what the verdict asks for. It returns what holds that up, where retrying at
// once does not help.
func (r *conversationReconciler) act(ctx context.Context, o gathered, start *prepared,
	v lifecycle.Verdict) (*lifecycle.Blocker, error) {
	var err error
	switch {
	case v.Pod == lifecycle.NeedPod && o.OldPod != nil:
		err = r.remove(ctx, "Pod", o.OldPod)
	case v.Pod == lifecycle.NeedPod && start != nil && start.blocked != nil:
		return start.blocked, nil
	case v.Pod == lifecycle.NeedPod && start != nil:
		if err = r.start(ctx, o.Conversation, &start.Start); isRefusal(err) {
			r.memory.change(o.Conversation, func(m *remembered) { m.refuse(o.Conversation, err, o.Now) })
		}
	case v.Pod == lifecycle.RemovePod:
		err = r.removeSession(ctx, o.Observation)
	case v.Pod == lifecycle.KeepEndedPod:
		err = r.removeSecret(ctx, o.Conversation)
	}
	if blocker := blockerOf(err); blocker != nil {
		return blocker, nil
	}
	return nil, err
}

// start creates the session's objects, the pod last. Each has one possible name, so that a second
// manager, a stale cache or a crash half way can only find an object, never create it twice.
func (r *conversationReconciler) start(ctx context.Context, c *v1alpha1.Conversation, start *objects.Start) error {
	if err := r.namespaces.ensure(ctx, c.Namespace, start.Class); err != nil {
		return err
	}
	if err := r.ensureWorkspace(ctx, c, start.Class.Workspace(c, start.Workspace)); err != nil {
		return err
	}
	if err := r.ensureSecret(ctx, c, start); err != nil {
		return err
	}
	// The last check before work may begin: the session may have ended since the cached record, unless
	// this process saw the Conversation come and nothing was recorded since.
	if !r.memory.of(c).created || !lifecycle.NeverReconciled(c.Status) {
		if err := r.upToDate(ctx, c); err != nil {
			return err
		}
	}
	r.memory.change(c, func(m *remembered) { m.created = false })
	err := r.client.Create(ctx, objects.Pod(c, start, r.options.RuntimeImage))
	if apierrors.IsAlreadyExists(err) {
		err = r.checkExistingPod(ctx, c)
	} else if err != nil {
		err = fmt.Errorf("create Pod: %w", err)
	}
	if err == nil {
		r.memory.change(c, func(m *remembered) {
			m.podAttempt, m.podCreated, m.refusal = lifecycle.Attempt(c.Status), r.clock.Now(), refusal{}
		})
	}
	return err
}

// checkExistingPod accepts a pod of this attempt that the cache does not show yet. It removes one of
// an earlier attempt, and one that lost its labels, so that no network policy holds it any more.
func (r *conversationReconciler) checkExistingPod(ctx context.Context, c *v1alpha1.Conversation) error {
	pod := &corev1.Pod{}
	if err := r.live.Get(ctx, sessionObject(c), pod); err != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	switch {
	case !owned(pod, c):
		return notOurs("Pod", pod, c)
	case lifecycle.LabelledAttempt(pod.Labels) == lifecycle.Attempt(c.Status) &&
		pod.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy:
		return nil
	}
	if err := r.remove(ctx, "Pod", pod); err != nil {
		return err
	}
	return &leavingError{kind: "Pod", name: pod.Name}
}

// ensureSecret creates the session's Secret. An existing one, of an earlier try, serves if it has the
// same inputs; otherwise it is replaced, for its pod never came to be.
func (r *conversationReconciler) ensureSecret(ctx context.Context, c *v1alpha1.Conversation,
	start *objects.Start) error {
	if start.Secret.ResourceVersion != "" {
		return nil
	}
	err := r.client.Create(ctx, start.Secret)
	if apierrors.IsAlreadyExists(err) {
		existing := &corev1.Secret{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(start.Secret), existing); err != nil {
			return fmt.Errorf("read the session's Secret: %w", err)
		}
		sameInputs := existing.Annotations[objects.AnnotationInputs] == start.Secret.Annotations[objects.AnnotationInputs]
		switch {
		case !owned(existing, c):
			return notOurs("Secret", existing, c)
		case sameInputs && existing.DeletionTimestamp == nil:
			start.Secret = existing
			return nil
		}
		err = client.IgnoreNotFound(r.client.Delete(ctx, existing, client.Preconditions{UID: &existing.UID}))
		if err == nil {
			err = r.client.Create(ctx, start.Secret)
		}
	}
	if err != nil {
		return fmt.Errorf("create the session's Secret: %w", err)
	}
	return nil
}

// removeSession removes pod and Secret of a session; its workspace stays.
func (r *conversationReconciler) removeSession(ctx context.Context, o lifecycle.Observation) error {
	for _, pod := range []*corev1.Pod{o.Pod, o.OldPod} {
		if pod != nil {
			if err := r.remove(ctx, "Pod", pod); err != nil {
				return err
			}
		}
	}
	// The cache does not show a pod that lost its labels. Once a live read found none, the status says
	// so.
	if o.Pod == nil && o.OldPod == nil && !lifecycle.ReportsNoPod(o.Conversation.Status) {
		pod := &corev1.Pod{}
		err := r.live.Get(ctx, sessionObject(o.Conversation), pod)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read Pod: %w", err)
		}
		if err == nil && owned(pod, o.Conversation) {
			if err := r.remove(ctx, "Pod", pod); err != nil {
				return err
			}
			return &leavingError{kind: "Pod", name: pod.Name}
		}
	}
	return r.removeSecret(ctx, o.Conversation)
}

// removeSecret removes the keys of a session that needs them no more, if the cache shows any.
func (r *conversationReconciler) removeSecret(ctx context.Context, c *v1alpha1.Conversation) error {
	secret := secretMetadata()
	if err := r.metadata.Get(ctx, sessionObject(c), secret); err != nil || !owned(secret, c) {
		return client.IgnoreNotFound(err)
	}
	return r.remove(ctx, "Secret", secret)
}

// remove deletes an object as it was seen, unless that is done or it was replaced.
func (r *conversationReconciler) remove(ctx context.Context, kind string, o client.Object) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	err := r.client.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s: %w", kind, err)
	}
	return nil
}
