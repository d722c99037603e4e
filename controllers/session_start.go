package controllers

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// sessionStart is what the start of a session needs.
type sessionStart struct {
	// unready is why the session cannot start yet.
	unready *problem
	// blocked is what stands in its way.
	blocked error
	// settings, agent and class it starts with, and where its files are to be.
	settings  *v1alpha1.UserSettingsSpec
	agent     *session.Agent
	class     class
	workspace v1alpha1.WorkspaceKind
	// secret of the session: the one that is there, or the one to create.
	secret *corev1.Secret
}

// prepareStart finds what a session without a pod would start with. An attempt that takes the place
// of another takes what that one had; any other takes the settings as they are now.
func (r *conversationReconciler) prepareStart(ctx context.Context, c *v1alpha1.Conversation) (*sessionStart, error) {
	if attemptOf(c.Status) > firstAttempt(c.Status) {
		if start, err := r.startAgain(ctx, c); start != nil || err != nil {
			return start, err
		}
	}
	// Not from the cache: who stores settings and then starts a session means those.
	settings, err := r.settings.get(ctx, r.live, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.UserSettingsName})
	switch {
	case apierrors.IsNotFound(err) || err == nil && settings.DeletionTimestamp != nil:
		return &sessionStart{unready: &problem{v1alpha1.ReasonSettingsNotReady, fmt.Sprintf("UserSettings %s do not exist",
			c.Spec.UserSettingsName)}}, nil
	case err != nil:
		return nil, fmt.Errorf("read UserSettings: %w", err)
	}
	if unready, err := r.configMapMissing(ctx, c); unready != nil || err != nil {
		return &sessionStart{unready: unready}, err
	}
	return r.startAnew(ctx, c, settings)
}

// startAgain finds what the attempt before started with; nil if that is not to be had any more.
func (r *conversationReconciler) startAgain(ctx context.Context, c *v1alpha1.Conversation) (*sessionStart, error) {
	existing := &corev1.Secret{}
	err := r.live.Get(ctx, sessionObject(c), existing)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the session's Secret: %w", err)
	case !owned(existing, c):
		return &sessionStart{blocked: notOurs("Secret", existing, c)}, nil
	case madeFor(existing.Labels) < firstAttempt(c.Status):
		return nil, nil
	}
	start, err := startAsBefore(existing)
	if err == nil {
		err = r.place(ctx, c, start, className(c, &v1alpha1.UserSettings{Spec: *start.settings}))
	}
	return start, err
}

// whole is a Conversation with all its texts, which the cache has only the beginnings of.
func (r *conversationReconciler) whole(ctx context.Context, c *v1alpha1.Conversation) (*v1alpha1.Conversation, error) {
	if c.Annotations[annotationCut] == "" {
		return c, nil
	}
	whole := &v1alpha1.Conversation{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(c), whole); err != nil {
		return nil, fmt.Errorf("read Conversation: %w", err)
	}
	if whole.UID != c.UID {
		return nil, fmt.Errorf("read Conversation: it is another one by now")
	}
	return whole, nil
}

// notAllowedError says that the class does not allow what the session asks for.
type notAllowedError struct{ problem *problem }

func (e *notAllowedError) Error() string { return e.problem.message }

// place finds the class of a session, and where its files are to be.
func (r *conversationReconciler) place(ctx context.Context, c *v1alpha1.Conversation, start *sessionStart,
	name string) (err error) {
	if start.class, start.unready, err = r.classNamed(ctx, name); err == nil {
		start.workspace, err = r.workspaceOf(ctx, c, start.class)
	}
	return err
}

// startAsBefore takes the settings from the document of the session that was lost.
func startAsBefore(secret *corev1.Secret) (*sessionStart, error) {
	var doc session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil {
		return nil, fmt.Errorf("read the session document in Secret %s: not valid JSON", secret.Name)
	}
	return &sessionStart{settings: &doc.Settings, agent: doc.Agent, secret: secret}, nil
}

func (r *conversationReconciler) startAnew(ctx context.Context, c *v1alpha1.Conversation,
	settings *v1alpha1.UserSettings) (*sessionStart, error) {
	agent, unready, err := r.agent(ctx, settings)
	if unready != nil || err != nil {
		return &sessionStart{unready: unready}, err
	}
	start := &sessionStart{settings: &settings.Spec, agent: agent}
	if err := r.place(ctx, c, start, className(c, settings)); err != nil {
		return nil, err
	}
	if start.unready != nil {
		return start, nil
	}
	if refused := cmp.Or(start.class.notAllowed(c, &settings.Spec, agent), unconfirmed(&settings.Spec,
		agent)); refused != nil {
		start.blocked = &notAllowedError{refused}
		return start, nil
	}
	start.settings = start.class.bounded(&settings.Spec)
	whole, err := r.whole(ctx, c)
	if err != nil {
		return nil, err
	}
	doc, files := buildDocument(whole, start.settings, start.class.bounds(&c.Spec))
	doc.Agent, doc.CABundle = agent, start.class.spec.CABundle()
	if agent != nil {
		if doc.Models, start.unready, err = r.models(ctx, &settings.Spec); start.unready != nil || err != nil {
			return start, err
		}
	}
	addSearch(&doc, r.options.SearchMCPURL)
	key, unready, err := r.signing.key(ctx)
	if unready != nil || err != nil {
		return &sessionStart{unready: unready}, err
	}
	doc.PublicKey, doc.ArchiveURL = session.PublicHalf(key), r.options.ArchiveURL
	secrets := newResolver(r.live, c.Namespace)
	values := map[string][]byte{}
	for _, f := range files {
		v, missing, err := secrets.value(ctx, f.ref)
		if err != nil {
			return nil, err
		}
		if missing != nil {
			return &sessionStart{unready: missing}, nil
		}
		values[f.file] = v
	}
	document, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encode the session document: %w", err)
	}
	if err := addArchiveToken(values, doc, key, r.clock.Now()); err != nil {
		return nil, err
	}
	start.secret = buildSessionSecret(c, document, values, rand.Text()+rand.Text(), inputsOf(document, files, secrets))
	return start, nil
}

// configMapMissing says what is missing of a replay or of images that were asked for. One ConfigMap
// at a time is read, and nothing of it kept: together they may be large.
func (r *conversationReconciler) configMapMissing(ctx context.Context, c *v1alpha1.Conversation) (*problem, error) {
	refs := c.ConfigMapReferences()
	for _, name := range configMapNames(refs) {
		configMap := &corev1.ConfigMap{}
		if err := r.live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, configMap); client.IgnoreNotFound(
			err) != nil {
			return nil, fmt.Errorf("read ConfigMap %s: %w", name, err)
		}
		for _, ref := range refs {
			if ref.Ref.Name != name {
				continue
			}
			// One that was not found has no key either.
			_, text := configMap.Data[ref.Ref.Key]
			_, binary := configMap.BinaryData[ref.Ref.Key]
			if !text && !binary {
				return &problem{v1alpha1.ReasonConfigMapNotFound, fmt.Sprintf("%s: ConfigMap %s with key %s does not exist",
					ref.Path, name, ref.Ref.Key)}, nil
			}
		}
	}
	return nil, nil
}

// start makes what the session needs, the pod last. Each object has one possible name, so that a
// second manager, a stale cache or a crash half way can only find what is there, never make it
// twice.
func (r *conversationReconciler) start(ctx context.Context, c *v1alpha1.Conversation, start *sessionStart) (err error) {
	if start.blocked != nil {
		return start.blocked
	}
	if err := r.shared.ensure(ctx, c.Namespace, start.class); err != nil {
		return err
	}
	if err := r.ensureWorkspace(ctx, c, start.class.workspace(c, start.workspace)); err != nil {
		return err
	}
	// A start that comes to its end is looked at again after a while, and until then what it made
	// is no news. One that fails is tried again when it is due, or when there is news.
	name := client.ObjectKeyFromObject(c)
	r.starts.looksSoon(name)
	defer func() {
		if err != nil {
			r.starts.looks(name)
		}
	}()
	if err := r.ensureSecret(ctx, c, start); err != nil {
		return err
	}
	// The last look before the work may begin: what an old record says of a session may have been
	// done since. Of a Conversation that this process saw come into being there is no older record.
	if !r.starts.first(c) {
		if err := r.upToDate(ctx, c); err != nil {
			return err
		}
	}
	err = r.client.Create(ctx, buildPod(c, start, r.options))
	if apierrors.IsAlreadyExists(err) {
		err = r.lookAtPod(ctx, c)
	} else if err != nil {
		err = fmt.Errorf("create Pod: %w", err)
	}
	if err == nil {
		r.starts.makes(c, r.clock.Now())
	}
	return err
}

// lookAtPod finds out about a pod that is there though the cache has none. It is the one of this
// attempt, which the cache has not seen yet; or one of an earlier attempt, or one whose labels
// somebody took away, so that no policy holds it any more: those go.
func (r *conversationReconciler) lookAtPod(ctx context.Context, c *v1alpha1.Conversation) error {
	pod := &corev1.Pod{}
	if err := r.live.Get(ctx, sessionObject(c), pod); err != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	switch {
	case !owned(pod, c):
		return notOurs("Pod", pod, c)
	case madeFor(pod.Labels) == attemptOf(c.Status) && pod.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy:
		return nil
	}
	if err := r.removePod(ctx, pod); err != nil {
		return err
	}
	return &leavingError{kind: "Pod", name: pod.Name}
}

func (r *conversationReconciler) ensureWorkspace(ctx context.Context, c *v1alpha1.Conversation,
	workspace *v1alpha1.Workspace) error {
	claim, err := buildWorkspace(c, workspace)
	if claim == nil || err != nil {
		return err
	}
	existing := &corev1.PersistentVolumeClaim{}
	err = r.client.Get(ctx, client.ObjectKeyFromObject(claim), existing)
	if apierrors.IsNotFound(err) {
		err = r.client.Create(ctx, claim)
		if !apierrors.IsAlreadyExists(err) {
			existing = claim
		} else {
			err = r.live.Get(ctx, client.ObjectKeyFromObject(claim), existing)
		}
	}
	if err != nil {
		return fmt.Errorf("keep PersistentVolumeClaim: %w", err)
	}
	switch {
	case !owned(existing, c):
		return notOurs("PersistentVolumeClaim", existing, c)
	case existing.DeletionTimestamp != nil:
		return &leavingError{kind: "PersistentVolumeClaim", name: existing.Name}
	}
	return nil
}

// removeWorkspace removes the volume of a session that stopped long ago.
func (r *conversationReconciler) removeWorkspace(ctx context.Context, c *v1alpha1.Conversation) error {
	claim := &corev1.PersistentVolumeClaim{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: workspaceName(c.Name)}, claim)
	if err != nil || !owned(claim, c) || claim.DeletionTimestamp != nil {
		return client.IgnoreNotFound(err)
	}
	// The files of a session that was started in this moment stay; the event of that brings us
	// back.
	if err := r.upToDate(ctx, c); err != nil {
		if errors.Is(err, errBehind) {
			return nil
		}
		return err
	}
	if err := r.client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}); err != nil &&
		!apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete PersistentVolumeClaim: %w", err)
	}
	return nil
}

// ensureSecret creates the session's Secret. One that is there is of an earlier try: it serves if
// it was made of the same, and goes if it was made of other settings, for a pod that never came to
// be.
func (r *conversationReconciler) ensureSecret(ctx context.Context, c *v1alpha1.Conversation,
	start *sessionStart) error {
	if start.secret.ResourceVersion != "" {
		return nil
	}
	err := r.client.Create(ctx, start.secret)
	if apierrors.IsAlreadyExists(err) {
		existing := &corev1.Secret{}
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(start.secret), existing); err != nil {
			return fmt.Errorf("read the session's Secret: %w", err)
		}
		switch {
		case !owned(existing, c):
			return notOurs("Secret", existing, c)
		case existing.Annotations[annotationInputs] == start.secret.Annotations[annotationInputs] &&
			existing.DeletionTimestamp == nil:
			start.secret = existing
			return nil
		}
		if err := r.client.Delete(ctx, existing, client.Preconditions{UID: &existing.UID}); client.IgnoreNotFound(
			err) != nil {
			return fmt.Errorf("remove the session's stale Secret: %w", err)
		}
		err = r.client.Create(ctx, start.secret)
	}
	if err != nil {
		return fmt.Errorf("create the session's Secret: %w", err)
	}
	return nil
}

// removeSession removes pod and Secret of a session that is not wanted; its workspace stays.
func (r *conversationReconciler) removeSession(ctx context.Context, o observation) error {
	for _, pod := range []*corev1.Pod{o.pod, o.old} {
		if pod != nil {
			if err := r.removePod(ctx, pod); err != nil {
				return err
			}
		}
	}
	// A pod that lost its labels is not in the cache. Once it was looked for in vain, the status
	// says that there is none.
	if o.pod == nil && o.old == nil && !saysNoPod(o.conversation.Status) {
		pod := &corev1.Pod{}
		err := r.live.Get(ctx, sessionObject(o.conversation), pod)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read Pod: %w", err)
		}
		if err == nil && owned(pod, o.conversation) {
			if err := r.removePod(ctx, pod); err != nil {
				return err
			}
			return &leavingError{kind: "Pod", name: pod.Name}
		}
	}
	return r.removeSecret(ctx, o.conversation)
}

// saysNoPod: the status says that there is no pod.
func saysNoPod(s v1alpha1.ConversationStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionPodReady)
	return c != nil && c.Reason == v1alpha1.ReasonNoPod
}

func (r *conversationReconciler) removePod(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	if err := r.client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}); err != nil && !apierrors.IsNotFound(err) &&
		!apierrors.IsConflict(err) {
		return fmt.Errorf("delete Pod: %w", err)
	}
	return nil
}

// removeSecret removes the keys of a session that needs them no more. Whether there are any is in
// the cache.
func (r *conversationReconciler) removeSecret(ctx context.Context, c *v1alpha1.Conversation) error {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := r.metadata.Get(ctx, sessionObject(c), secret)
	if err != nil || !owned(secret, c) || secret.DeletionTimestamp != nil {
		return client.IgnoreNotFound(err)
	}
	if err := r.client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID}); err != nil &&
		!apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the session's Secret: %w", err)
	}
	return nil
}
