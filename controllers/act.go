package controllers

import (
	"cmp"
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// act creates or removes the objects for a verdict. It returns a blocker if an immediate retry
// would fail again.
func (r *conversationReconciler) act(ctx context.Context, o gathered, start *prepared,
	v lifecycle.Verdict) (*lifecycle.Blocker, error) {
	var err error
	switch {
	case o.OldPod != nil && (v.Pod == lifecycle.NeedPod || o.Pod != nil && v.Pod != lifecycle.RemovePod):
		err = r.remove(ctx, "Pod", o.OldPod)
	case v.Pod == lifecycle.NeedPod && start != nil && start.blocked != nil:
		return start.blocked, nil
	case v.Pod == lifecycle.NeedPod && start != nil:
		err = r.start(ctx, o.Conversation, &start.Start)
		if err != nil && blockerOf(err) == nil {
			r.memory.update(o.Conversation, func(m *memoryEntry) { m.recordFailure(o.Now) })
		}
		if isRefusal(err) {
			r.memory.update(o.Conversation, func(m *memoryEntry) { m.recordRefusal(o.Conversation, err, o.Now) })
			r.warmPause.note(client.ObjectKeyFromObject(o.Conversation), exceedsQuota(err), o.Now)
		} else {
			r.memory.turns.giveBack(queueSession(o.Conversation).User)
		}
	case v.Pod == lifecycle.NeedPod && o.Pod != nil && o.Warm.Unbound:
		r.bind(o.Conversation, o.Pod, nil, r.warmKey(o.Pod.Namespace, objects.Claim{Name: o.Pod.Name, UID: o.Pod.UID}))
	case v.Pod == lifecycle.RemovePod:
		err = r.removeSession(ctx, o.Observation)
	case v.Pod == lifecycle.KeepEndedPod:
		err = r.removeSecret(ctx, o.Observation)
	}
	if blocker := blockerOf(err); blocker != nil {
		return blocker, nil
	}
	return nil, err
}

// start claims a warm pod, or creates the session's objects, the pod last. The names of the objects
// are deterministic. A crash, a stale cache or a second manager therefore cannot create an object
// twice.
func (r *conversationReconciler) start(ctx context.Context, c *v1alpha1.Conversation, start *objects.Start) error {
	if err := r.namespaces.ensure(ctx, c.Namespace, start.Class); err != nil {
		return err
	}
	// removeWarmPod and ensureClaim run at the same time, because no pod is adopted or created before
	// both have succeeded.
	var group errgroup.Group
	group.Go(func() error { return r.removeWarmPod(ctx, c) })
	claim, err := r.ensureClaim(ctx, c, start)
	if failed := group.Wait(); failed != nil || err != nil {
		return cmp.Or(failed, err)
	}
	// This is the last check before work begins: the session may have ended after the cached version
	// was read.
	if err := r.checkFresh(ctx, c); err != nil {
		return err
	}
	if claim != nil {
		key, pod := r.warmKey(c.Namespace, *claim), (*corev1.Pod)(nil)
		go func() { _, _ = key() }() // read the key during the adoption
		if pod, err = r.adopt(ctx, c, start.Secret, claim); err == nil {
			r.bind(c, pod, start.Secret, key)
		}
	} else {
		err = r.createPod(ctx, c, start)
	}
	if err == nil {
		r.memory.update(c, func(m *memoryEntry) {
			m.podAttempt, m.podCreated, m.refusal = lifecycle.Attempt(c.Status), r.clock.Now(), refusal{}
			m.failures = 0
		})
	}
	return err
}

// ensureClaim creates the session's Secret, and returns the warm pod that the Secret claims. If the
// Secret claims no warm pod, ensureClaim also creates the PersistentVolumeClaim of the session, and
// returns nil.
func (r *conversationReconciler) ensureClaim(ctx context.Context, c *v1alpha1.Conversation,
	start *objects.Start) (*objects.Claim, error) {
	wanted, err := r.claimWarm(ctx, c, start)
	if err == nil && wanted == nil {
		err = r.ensureWorkspace(ctx, c, start)
	}
	if err == nil {
		err = r.ensureSecret(ctx, c, start)
	}
	claim := currentClaim(c, start.Secret)
	if wanted != nil && (err != nil || claim == nil || *claim != *wanted) {
		r.warm.release(client.ObjectKeyFromObject(c)) // the Secret does not claim this pod
	}
	if err == nil && wanted != nil && claim == nil {
		err = r.ensureWorkspace(ctx, c, start)
	}
	return claim, err
}

func (r *conversationReconciler) createPod(ctx context.Context, c *v1alpha1.Conversation, start *objects.Start) error {
	err := r.client.Create(ctx, objects.Pod(c, start, r.options.RuntimeImage))
	if apierrors.IsAlreadyExists(err) {
		return r.checkExistingPod(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("create Pod: %w", err)
	}
	return nil
}

// checkExistingPod accepts a pod of this attempt that the cache does not show yet. It removes a pod
// of an earlier attempt. It also removes a pod that lost its labels, because no network policy
// selects a pod without labels.
func (r *conversationReconciler) checkExistingPod(ctx context.Context, c *v1alpha1.Conversation) error {
	pod := &corev1.Pod{}
	if err := r.live.Get(ctx, sessionObject(c), pod); err != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	switch {
	case !owned(pod, c):
		return ownershipError("Pod", pod, c)
	case lifecycle.LabelledAttempt(pod.Labels) == lifecycle.Attempt(c.Status) &&
		pod.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy:
		return nil
	case ofLaterAttempt(pod, c):
		if err := r.checkFresh(ctx, c); err != nil {
			return err
		}
	}
	if err := r.remove(ctx, "Pod", pod); err != nil {
		return err
	}
	return &terminatingError{kind: "Pod", name: pod.Name, attempt: true}
}

// ensureSecret creates the session's Secret. It keeps an existing Secret that the manager signed in
// three cases: the hash of its inputs is the same, it claims a warm pod for this attempt, or the
// pod of its attempt exists. It replaces any other existing Secret.
//
// If the replaced Secret belongs to this attempt, another manager may have written it, and may
// still create a pod with the default name. If the new Secret claimed a warm pod, the session could
// then have two pods. The new Secret therefore claims no pod.
func (r *conversationReconciler) ensureSecret(ctx context.Context, c *v1alpha1.Conversation,
	start *objects.Start) error {
	if start.Secret.ResourceVersion != "" {
		return nil
	}
	size := 0
	for _, value := range start.Secret.Data {
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		return &oversizeError{size}
	}
	err := r.client.Create(ctx, start.Secret)
	if apierrors.IsAlreadyExists(err) {
		existing := &corev1.Secret{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(start.Secret), existing); err != nil {
			return fmt.Errorf("read the session's Secret: %w", err)
		}
		if reused, err := r.reuseSecret(ctx, c, existing, start); reused || err != nil {
			return err
		}
		if lifecycle.LabelledAttempt(existing.Labels) == lifecycle.Attempt(c.Status) {
			if err := r.removeClaim(ctx, c, start.Secret); err != nil {
				return err
			}
		} else if err := r.removeClaimedPod(ctx, c, existing); err != nil {
			return err
		}
		if _, err := r.discardClaim(ctx, c, existing); err != nil {
			return err
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

func (r *conversationReconciler) reuseSecret(ctx context.Context, c *v1alpha1.Conversation, existing *corev1.Secret,
	start *objects.Start) (bool, error) {
	keys, _, err := r.signingKeys(ctx)
	if err != nil {
		return false, err
	}
	reuse, err := checkSecret(existing, c, keys)
	if reuse && currentClaim(c, existing) == nil && existing.Annotations[objects.AnnotationInputs] !=
		start.Secret.Annotations[objects.AnnotationInputs] {
		reuse, err = r.usedByPod(ctx, c, existing)
	}
	if reuse {
		start.Secret = existing
	}
	return reuse, err
}

// usedByPod reports whether the pod of the Secret's attempt exists under the default name. The
// cache may not show the pod yet.
func (r *conversationReconciler) usedByPod(ctx context.Context, c *v1alpha1.Conversation,
	secret *corev1.Secret) (bool, error) {
	pod := &corev1.Pod{}
	if err := r.live.Get(ctx, sessionObject(c), pod); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read Pod: %w", err)
	}
	return owned(pod, c) && lifecycle.LabelledAttempt(pod.Labels) == lifecycle.LabelledAttempt(secret.Labels), nil
}

// removeSession removes the pod and the Secret of a session; its workspace stays.
func (r *conversationReconciler) removeSession(ctx context.Context, o lifecycle.Observation) error {
	for _, pod := range []*corev1.Pod{o.Pod, o.OldPod} {
		if pod != nil {
			if err := r.remove(ctx, "Pod", pod); err != nil {
				return err
			}
		}
	}
	// The cache does not show a pod without labels, so look for such a pod in the API server. This is
	// not necessary if the status already says that there is no pod.
	if o.Pod == nil && o.OldPod == nil && !o.Conversation.Status.ReportsNoPod() {
		if err := r.removeLivePod(ctx, o.Conversation, podObject(o.Conversation)); err != nil {
			return err
		}
		if err := r.removeWarmPod(ctx, o.Conversation); err != nil {
			return err
		}
		secret := secretMetadata()
		if err := r.live.Get(ctx, sessionObject(o.Conversation), secret); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read the session's Secret: %w", err)
		}
		if err := r.removeClaimedPod(ctx, o.Conversation, secret); err != nil {
			return err
		}
	}
	return r.removeSecret(ctx, o)
}

// removeLivePod removes a pod of the Conversation, even if the cache does not show the pod. It
// returns an error until the pod is gone.
func (r *conversationReconciler) removeLivePod(ctx context.Context, c *v1alpha1.Conversation,
	key client.ObjectKey) error {
	pod := &corev1.Pod{}
	if err := r.live.Get(ctx, key, pod); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	if !owned(pod, c) { // or the pod does not exist
		return nil
	}
	if ofLaterAttempt(pod, c) {
		return errStale
	}
	if err := r.remove(ctx, "Pod", pod); err != nil {
		return err
	}
	return &terminatingError{kind: "Pod", name: pod.Name, attempt: true}
}

// removeSecret removes the session's Secret. Before that, it discards a claimed pod that the
// session has not adopted, because another manager may be about to adopt this pod.
func (r *conversationReconciler) removeSecret(ctx context.Context, o lifecycle.Observation) error {
	c, secret := o.Conversation, secretMetadata()
	err := r.metadata.Get(ctx, sessionObject(c), secret)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the session's Secret: %w", err)
	}
	if owned(secret, c) && ofLaterAttempt(secret, c) { // the Secret may not exist
		return errStale
	}
	if claim := objects.ClaimIn(secret.Annotations); owned(secret, c) && claim != nil && !hasUID(o.Pod, claim.UID) &&
		!hasUID(o.OldPod, claim.UID) {
		current := &corev1.Secret{}
		if err := r.live.Get(ctx, sessionObject(c), current); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read the session's Secret: %w", err)
		}
		if ofLaterAttempt(current, c) {
			return errStale
		}
		discarded, err := r.discardClaim(ctx, c, current)
		if err == nil && !discarded {
			live := objects.ClaimIn(current.Annotations) // not nil, because discardClaim found it
			if !hasUID(o.Pod, live.UID) && !hasUID(o.OldPod, live.UID) {
				err = r.removeClaimedPod(ctx, c, current) // the cache does not show yet that the session adopted the pod
			}
		}
		if err != nil {
			return err
		}
	}
	r.warm.release(client.ObjectKeyFromObject(c))
	if !owned(secret, c) {
		return nil
	}
	return r.remove(ctx, "Secret", secret)
}

func hasUID(pod *corev1.Pod, uid types.UID) bool { return pod != nil && pod.UID == uid }

// ofLaterAttempt reports whether an object of a session belongs to a later attempt than the current
// one. Another manager has then begun that attempt, and the cached Conversation is stale.
func ofLaterAttempt(o client.Object, c *v1alpha1.Conversation) bool {
	return lifecycle.LabelledAttempt(o.GetLabels()) > lifecycle.Attempt(c.Status)
}

// remove deletes an object, unless it is being deleted or was replaced.
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
