package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// A session gets a warm pod in three steps. This manager or another manager can repeat each step.
//   1. Claim: the new Secret of the session names the pod. Two sessions may claim the same pod.
//   2. Adoption: the Conversation becomes the owner of the pod and of the pod's volume. Only one
//      Conversation can adopt a pod.
//   3. Bind: the manager sends the data of the session to the pod.

var (
	errClaimTaken = errors.New("the claimed pod cannot be adopted")
	errClaimGone  = errors.New("the claimed pod is gone")
	errBadVolume  = errors.New("the volume of the claimed pod is missing, is being deleted, or has another owner")
)

// maxAdoptions is the maximum number of retries of an adoption. The adoption of a pod or of its
// volume is retried if that object changed between the read and the write.
const maxAdoptions = 5

// claimWarm adds the claim of a warm pod to the new Secret of a session. It returns nil if no warm
// pod fits. Only the first attempt after a user started the session gets a warm pod.
func (r *conversationReconciler) claimWarm(ctx context.Context, c *v1alpha1.Conversation,
	start *objects.Start) (*objects.Claim, error) {
	if start.Secret.ResourceVersion != "" || lifecycle.Attempt(c.Status) != lifecycle.FirstAttempt(c.Status) ||
		!r.warm.has(c.Namespace, start.Class.Name) {
		return nil, nil
	}
	if start.Workspace != v1alpha1.WorkspaceScratch {
		if volume, err := r.findVolume(ctx, c, c.Status.Workspace != ""); volume != nil || err != nil {
			return nil, err
		}
	}
	keys, _, err := r.signingKeys(ctx)
	if err != nil || len(keys.snapshots) == 0 {
		return nil, err
	}
	hash, err := objects.TemplateHash(objects.Pod(c, start, r.options.RuntimeImage), keys.snapshots)
	if err != nil {
		return nil, err
	}
	claim := r.warm.claim(readyKey{poolKey{c.Namespace, start.Class.Name}, hash}, client.ObjectKeyFromObject(c),
		r.clock.Now())
	if claim == nil {
		return nil, nil
	}
	return claim, objects.AddClaim(start.Secret, c.UID, *claim, keys.snapshots)
}

// removeClaim removes the claim from the new Secret of a session, before the Secret is created.
func (r *conversationReconciler) removeClaim(ctx context.Context, c *v1alpha1.Conversation,
	secret *corev1.Secret) error {
	keys, _, err := r.signingKeys(ctx)
	if err != nil || objects.ClaimIn(secret.Annotations) == nil {
		return err
	}
	return objects.RemoveClaim(secret, c.UID, keys.snapshots)
}

// currentClaim returns the claim in the Secret of the current attempt; nil without a claim.
func currentClaim(c *v1alpha1.Conversation, secret metav1.Object) *objects.Claim {
	if lifecycle.LabelledAttempt(secret.GetLabels()) != lifecycle.Attempt(c.Status) {
		return nil
	}
	return objects.ClaimIn(secret.GetAnnotations())
}

// removeClaimedPod removes the warm pod that a Secret of the session claims, if the session adopted
// the pod. It reads the pod from the API server, because the cache may not show the adoption yet.
func (r *conversationReconciler) removeClaimedPod(ctx context.Context, c *v1alpha1.Conversation,
	secret metav1.Object) error {
	claim := objects.ClaimIn(secret.GetAnnotations())
	if claim == nil {
		return nil
	}
	return r.removeLivePod(ctx, c, client.ObjectKey{Namespace: c.Namespace, Name: claim.Name})
}

// removeWarmPod removes the warm pod that the status names, if the pod belongs to an earlier
// attempt. It bypasses the cache, which may not show the pod. It returns an error until the pod
// is gone. It ignores pods that were created for the session: they have the same name in each
// attempt, so a session never has two of them.
func (r *conversationReconciler) removeWarmPod(ctx context.Context, c *v1alpha1.Conversation) error {
	name := c.Status.PodName
	if name == "" || name == v1alpha1.SessionName(c.Name) {
		return nil
	}
	pod := &corev1.Pod{}
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	if lifecycle.LabelledAttempt(pod.Labels) == lifecycle.Attempt(c.Status) {
		return nil
	}
	return r.removeLivePod(ctx, c, client.ObjectKeyFromObject(pod))
}

// discardClaim deletes the warm pod that the session's Secret claims, unless a session adopted the
// pod. After the deletion, no manager can adopt the pod, so the Secret may be deleted too.
// discardClaim returns false if the current attempt of the session adopted the pod. If it discards
// the claim, it also ends the claim in the manager's memory.
func (r *conversationReconciler) discardClaim(ctx context.Context, c *v1alpha1.Conversation,
	secret *corev1.Secret) (bool, error) {
	claim := objects.ClaimIn(secret.Annotations)
	keys, _, err := r.signingKeys(ctx)
	if err != nil || claim == nil || !objects.Authentic(secret, c.UID, keys.snapshots, keys.previousSnapshots) {
		return true, err
	}
	key, pod := client.ObjectKey{Namespace: c.Namespace, Name: claim.Name}, &corev1.Pod{}
	if err := r.live.Get(ctx, key, pod); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read Pod: %w", err)
	}
	free := pod.UID == claim.UID && owningClass(pod) != nil // the pod exists, and no session has adopted it
	if !free && owned(pod, c) && lifecycle.LabelledAttempt(pod.Labels) == lifecycle.Attempt(c.Status) {
		return false, nil
	}
	if free && pod.DeletionTimestamp == nil {
		// The precondition on resourceVersion prevents the deletion of a pod that a session has
		// just adopted.
		err := r.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("delete the claimed Pod: %w", err)
		}
	}
	r.warm.forfeit(client.ObjectKeyFromObject(c), claim.UID)
	if !free {
		return true, nil
	}
	volume := &corev1.PersistentVolumeClaim{}
	if err := r.live.Get(ctx, key, volume); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read PersistentVolumeClaim: %w", err)
	}
	if owned(volume, c) && volume.Name != c.Status.WorkspaceClaimName { // no session used it
		return true, r.remove(ctx, "PersistentVolumeClaim", volume)
	}
	return true, nil
}

// giveUpClaim deletes the session's Secret, because the session cannot adopt the pod that the
// Secret claims. The next try claims another pod.
func (r *conversationReconciler) giveUpClaim(ctx context.Context, c *v1alpha1.Conversation,
	secret *corev1.Secret) error {
	discarded, err := r.discardClaim(ctx, c, secret)
	if err == nil && discarded {
		err = client.IgnoreNotFound(r.client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID}))
	}
	return errors.Join(errClaimTaken, err)
}

// adopt makes the Conversation the owner of the claimed pod and of its volume. It gives up the
// claim if another Conversation owns the pod, if the pod failed or is being deleted, or if the
// volume is unusable.
func (r *conversationReconciler) adopt(ctx context.Context, c *v1alpha1.Conversation, secret *corev1.Secret,
	claim *objects.Claim) (*corev1.Pod, error) {
	for try := 0; ; try++ {
		pod, err := r.claimedPod(ctx, c.Namespace, claim, try > 0)
		switch {
		case err != nil:
			return nil, err
		case owned(pod, c) && lifecycle.LabelledAttempt(pod.Labels) == lifecycle.Attempt(c.Status):
			return pod, nil
		case owningClass(pod) == nil || pod.DeletionTimestamp != nil || failedWarm(pod):
			// This attempt cannot adopt the pod. A pod that no class owns was already adopted by
			// another session or by an earlier attempt.
			return nil, r.giveUpClaim(ctx, c, secret)
		}
		if err := r.adoptVolume(ctx, c, pod); errors.Is(err, errBadVolume) {
			return nil, errors.Join(err, r.giveUpClaim(ctx, c, secret))
		} else if err != nil {
			return nil, err
		}
		patched, err := r.patchOwner(ctx, c, pod, &corev1.Pod{}, objects.AdoptedLabels(c, secret))
		switch {
		case err == nil:
			return patched.(*corev1.Pod), nil
		case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) || try == maxAdoptions:
			return nil, fmt.Errorf("adopt Pod: %w", err)
		}
	}
}

// claimedPod returns the claimed pod. It reads the pod from the API server if live is set, or if
// the cache does not show the pod as free. If the pod is gone, it returns errClaimGone, and the
// next reconcile begins a new attempt.
func (r *conversationReconciler) claimedPod(ctx context.Context, namespace string, claim *objects.Claim,
	live bool) (*corev1.Pod, error) {
	key, pod := client.ObjectKey{Namespace: namespace, Name: claim.Name}, &corev1.Pod{}
	err := r.client.Get(ctx, key, pod)
	if live || apierrors.IsNotFound(err) || err == nil && (pod.UID != claim.UID || owningClass(pod) == nil) {
		pod = &corev1.Pod{} // the cache may be stale
		err = r.live.Get(ctx, key, pod)
	}
	switch {
	case apierrors.IsNotFound(err) || err == nil && pod.UID != claim.UID:
		return nil, errClaimGone
	case err != nil:
		return nil, fmt.Errorf("read Pod: %w", err)
	}
	return pod, nil
}

// adoptVolume makes the Conversation the owner of the volume of a warm pod, so that the volume
// outlives the pod.
func (r *conversationReconciler) adoptVolume(ctx context.Context, c *v1alpha1.Conversation, pod *corev1.Pod) error {
	name := lifecycle.WorkspaceClaim(pod)
	if name == "" {
		return nil
	}
	key, volume := client.ObjectKey{Namespace: c.Namespace, Name: name}, &corev1.PersistentVolumeClaim{}
	err := r.client.Get(ctx, key, volume)
	for try := 0; ; try++ {
		if apierrors.IsNotFound(err) || try > 0 {
			volume = &corev1.PersistentVolumeClaim{}
			err = r.live.Get(ctx, key, volume)
		}
		switch {
		case apierrors.IsNotFound(err):
			return errBadVolume
		case err != nil:
			return fmt.Errorf("read PersistentVolumeClaim: %w", err)
		case volume.DeletionTimestamp != nil || !owned(volume, c) && !owned(volume, pod):
			return errBadVolume
		case owned(volume, c):
			return nil
		}
		_, err = r.patchOwner(ctx, c, volume, &corev1.PersistentVolumeClaim{}, objects.AdoptedVolumeLabels(c))
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) || try == maxAdoptions {
			return fmt.Errorf("adopt PersistentVolumeClaim: %w", err)
		}
	}
}

// patchOwner makes the Conversation the only owner of an object, and adds labels. It returns a
// conflict if the object changed since it was read.
func (r *conversationReconciler) patchOwner(ctx context.Context, c *v1alpha1.Conversation, o, patched client.Object,
	labels map[string]string) (client.Object, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion(), "labels": labels,
		"ownerReferences": objects.SessionOwner(c),
	}})
	if err != nil {
		return nil, err
	}
	patched.SetNamespace(o.GetNamespace())
	patched.SetName(o.GetName())
	return patched, r.client.Patch(ctx, patched, client.RawPatch(types.MergePatchType, patch))
}

// gatherWarm observes the warm pod of a session. If the session has no pod, it observes the warm
// pod that the session claimed.
func (g *gatherer) gatherWarm(ctx context.Context, o *gathered) error {
	c := o.Conversation
	switch {
	case lifecycle.IsWarm(o.Pod):
		o.Warm.Unbound, o.Warm.Refused = g.binds.state(c.Status, o.Pod)
		if lifecycle.Ran(c.Status) {
			return nil
		}
		o.Warm.ClaimTime = o.Now // used if the cache does not show the Secret yet
	case o.Pod != nil || o.OldPod != nil || o.PodExpected || lifecycle.Ran(c.Status) ||
		lifecycle.Attempt(c.Status) != lifecycle.FirstAttempt(c.Status):
		return nil
	}
	secret := secretMetadata()
	if err := g.metadata.Get(ctx, sessionObject(c), secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read the session's Secret: %w", err)
	}
	switch {
	case !owned(secret, c): // or the Secret does not exist
		return nil
	case currentClaim(c, secret) == nil: // the cache may still show the Secret of the previous attempt
		return nil
	case o.Pod != nil:
		o.Warm.ClaimTime = secret.CreationTimestamp.Time
		return nil
	}
	return g.gatherClaim(ctx, o, currentClaim(c, secret))
}

// gatherClaim notes whether the claimed pod is gone. If the session has already adopted the volume
// of that pod, gatherClaim records the volume as the workspace of the session.
func (g *gatherer) gatherClaim(ctx context.Context, o *gathered, claim *objects.Claim) error {
	c, key, pod := o.Conversation, client.ObjectKey{Namespace: o.Conversation.Namespace, Name: claim.Name}, &corev1.Pod{}
	if err := g.live.Get(ctx, key, pod); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	if pod.UID == claim.UID {
		return nil
	}
	// The claim in the cache may be forged, so read and check the Secret. A forged claim is ignored
	// here, and reported when the session starts again.
	secret := &corev1.Secret{}
	if err := g.live.Get(ctx, sessionObject(c), secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	keys, _, err := g.signingKeys(ctx)
	if err != nil {
		return err
	}
	trusted, _ := checkSecret(secret, c, keys)
	if current := currentClaim(c, secret); !trusted || current == nil || *current != *claim {
		return nil
	}
	o.Warm.Gone = true
	volume := &corev1.PersistentVolumeClaim{}
	if err := g.live.Get(ctx, key, volume); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read PersistentVolumeClaim: %w", err)
	}
	if owned(volume, c) {
		o.WorkspaceClaim = volume.Name
	}
	return nil
}
