package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// gather reads all that the verdict depends on. What a start needs is read only where there is no
// pod.
func (r *conversationReconciler) gather(ctx context.Context, c *v1alpha1.Conversation) (observation, *sessionStart,
	error) {
	o := observation{conversation: c, now: r.clock.Now()}
	if err := r.gatherPod(ctx, &o); err != nil {
		return o, nil, err
	}
	settings := &v1alpha1.UserSettings{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.UserSettingsName}, settings)
	if client.IgnoreNotFound(err) != nil {
		return o, nil, fmt.Errorf("read UserSettings: %w", err)
	}
	o.settingsExist = err == nil && settings.DeletionTimestamp == nil
	o.analytics = o.settingsExist && ptr.Deref(settings.Spec.UserConsentsToAnalytics, false)
	name := className(c, settings)
	if o.pod != nil {
		// It is of the class that it started with, whatever became of its settings since.
		name = cmp.Or(o.pod.Labels[v1alpha1.LabelSessionClass], name)
	}
	class, missing, err := r.classNamed(ctx, name)
	if err != nil {
		return o, nil, err
	}
	o.bounds, o.scratch = class.bounds(&c.Spec), isScratch(o)
	o.volume = class.spec.Workspace != nil
	if o.old != nil || o.awaited || !wantsPod(o) {
		return o, nil, nil
	}
	if missing != nil {
		o.unready, o.storing = missing, untilStored(c, o.now) > 0
		r.ledger.leave(client.ObjectKeyFromObject(c))
		return o, nil, nil
	}
	start, err := r.prepareStart(ctx, c)
	if err != nil {
		return o, nil, err
	}
	o.unready, o.storing = start.unready, untilStored(c, o.now) > 0
	last, refused := r.starts.refusal(c)
	switch {
	case start.unready != nil || start.blocked != nil:
		r.ledger.leave(client.ObjectKeyFromObject(c)) // who cannot start holds up nobody who could
	case refused && o.now.Sub(last.at) < retrySoonest:
		// That it was refused is written, and each write is a reason to look again. Sessions that
		// take a place in turn to try would keep each other busy without end.
		o.paused = true
		return o, &sessionStart{blocked: last.err}, nil
	case !r.ledger.enter(c, class.spec.MaxSessionsPerUser, o.now):
		o.queued = *class.spec.MaxSessionsPerUser
		if refused {
			o.refused = stableWords(last.err)
		}
		return o, nil, nil
	}
	return o, start, nil
}

// storingTakes is how long the facade may take to store what a Conversation refers to. One that was
// killed meanwhile never takes the mark away.
const storingTakes = time.Minute

const stillStored = "What it starts with is still being stored"

// untilStored is how long what a Conversation starts with may still take to be stored; nothing if
// that is done, or was given up.
func untilStored(c *v1alpha1.Conversation, now time.Time) time.Duration {
	if c.Annotations[v1alpha1.AnnotationIncomplete] == "" {
		return 0
	}
	return max(0, c.CreationTimestamp.Add(storingTakes).Sub(now))
}

// gatherPod finds the session's pod: that of the present attempt, or one of an earlier attempt.
func (r *conversationReconciler) gatherPod(ctx context.Context, o *observation) error {
	c, pod := o.conversation, &corev1.Pod{}
	err := r.client.Get(ctx, sessionObject(c), pod)
	if apierrors.IsNotFound(err) && ran(c.Status) && c.Status.State != v1alpha1.StateStopped {
		// A session that ran would be taken for lost. A cache that is behind is no proof of that.
		err = r.live.Get(ctx, sessionObject(c), pod)
		if err == nil && pod.Labels[v1alpha1.LabelManagedBy] != v1alpha1.ManagedBy {
			return nil // the cache will never have it, nor does a policy hold it any more
		}
	}
	found := err == nil && owned(pod, c)
	if err := client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	if err == nil {
		r.starts.shown(client.ObjectKeyFromObject(c))
	}
	switch {
	case !found:
		o.awaited = err != nil && r.starts.awaits(c, o.now)
	case madeFor(pod.Labels) == attemptOf(c.Status):
		o.pod = pod
	case madeFor(pod.Labels) > attemptOf(c.Status):
		o.old = pod
		return r.upToDate(ctx, c)
	default:
		o.old = pod
	}
	return nil
}

// errBehind: what the cache has of a Conversation is not what is recorded of it.
var errBehind = errors.New("the cache is behind what is recorded of the Conversation")

// upToDate is errBehind if the cache is behind what is recorded of a Conversation. What is done by
// an old record is not undone when the next one comes.
func (r *conversationReconciler) upToDate(ctx context.Context, c *v1alpha1.Conversation) error {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Conversation"))
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(c), now); err != nil {
		return fmt.Errorf("read Conversation: %w", err)
	}
	if now.ResourceVersion != c.ResourceVersion {
		return errBehind
	}
	return nil
}

// isScratch says whether the files of a session go with its pod: as it is recorded or, if nobody
// could yet, as its pod says.
func isScratch(o observation) bool {
	kind := o.conversation.Status.Workspace
	if pod := o.pod; kind == "" && pod != nil {
		kind = v1alpha1.WorkspaceKind(pod.Labels[v1alpha1.LabelWorkspace])
	}
	return o.conversation.Spec.Workspace == nil && kind != v1alpha1.WorkspaceClass
}

// sessionObject names the session's pod and Secret.
func sessionObject(c *v1alpha1.Conversation) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name)}
}
