package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

// incompleteAnnotation marks an object that a facade did not finish writing. A repeated request
// completes the object.
const incompleteAnnotation = "parley.dev/incomplete"

// maxRunning is the default class's limit of running sessions per user.
const maxRunning = 10

// problem is a violated guarantee.
type problem struct{ check, text string }

// found is the final state of the cluster.
type found struct {
	conversations map[types.NamespacedName]*v1alpha1.Conversation
	settings      map[types.NamespacedName]*v1alpha1.UserSettings
	pods          map[types.NamespacedName]*corev1.Pod
	secrets       map[types.NamespacedName]*corev1.Secret
	podsOf        map[types.UID]*corev1.Pod // keyed by the UID of the Conversation
	class         *v1alpha1.SessionClass
	// uids contains the UIDs of all found objects. children are the found objects that are neither
	// Conversations nor UserSettings.
	uids     map[types.UID]bool
	children []client.Object
	// running is the number of running sessions by user.
	running map[types.NamespacedName]int
	// restarted returns the number of restarts of a Conversation's containers.
	restarted func(types.UID) int
	// extra contains the Conversations that had more attempts than starts, keyed by UID.
	extra map[types.UID]extraAttempts
}

type extraAttempts struct {
	count       int
	description string
}

// check checks all objects repeatedly until no problem is left or the time is over, and then
// reports the remaining problems. It returns the Conversations with extra attempts, and the last
// problem that it saw, even if that problem is gone.
func (w *world) check(ctx context.Context) (extra map[types.UID]extraAttempts, last string) {
	var problems []problem
	settling, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := cluster.Retry(settling, settleInterval, func(ctx context.Context) error {
		f, err := w.find(ctx)
		if err != nil {
			return err
		}
		extra = f.extra
		if problems = w.problems(f); len(problems) == 0 {
			return nil
		}
		last = problems[0].text
		return errors.New(last)
	})
	if err != nil && len(problems) == 0 {
		problems = []problem{{checkLost, "could not read the objects: " + err.Error()}}
	}
	for _, p := range problems {
		w.report.violation(p.check, "%s", p.text)
	}
	return extra, last
}

// checkExtraAttempts reports extra attempts without a cause. A pool may delete a warm pod after a
// session claimed it and before the session owns it. This causes one extra attempt.
func (h *history) checkExtraAttempts(extra map[types.UID]extraAttempts) {
	caused := map[types.UID]int{}
	for claiming := range h.claims {
		if h.causedNext(claiming) {
			caused[claiming.conversation]++
		}
	}
	explained := 0
	for conversation, attempts := range extra {
		if attempts.count > caused[conversation] {
			h.report.violation(checkAttempts, "%s; %d attempts lost their claimed pods", attempts.description,
				caused[conversation])
			continue
		}
		explained += attempts.count
	}
	h.report.note(checkAttempts, "%d conversations; %d extra attempts, because claimed pods were deleted", len(h.last),
		explained)
}

// causedNext reports whether an attempt lost its claimed pod before a session owned the pod, and
// therefore caused the next attempt. The attempt must not have had another pod.
func (h *history) causedNext(claiming attemptID) bool {
	next := claiming
	next.number++
	if !h.automatic[next] || len(h.podsOf[claiming]) > 0 {
		return false
	}
	for pod := range h.claims[claiming] {
		if h.deleted[pod] && len(h.owners[pod]) == 0 {
			return true
		}
	}
	return false
}

func (w *world) find(ctx context.Context) (*found, error) {
	f := &found{
		conversations: map[types.NamespacedName]*v1alpha1.Conversation{},
		settings:      map[types.NamespacedName]*v1alpha1.UserSettings{},
		pods:          map[types.NamespacedName]*corev1.Pod{}, secrets: map[types.NamespacedName]*corev1.Secret{},
		podsOf: map[types.UID]*corev1.Pod{}, uids: map[types.UID]bool{}, running: map[types.NamespacedName]int{},
		class: &v1alpha1.SessionClass{}, restarted: w.bound.restarted, extra: map[types.UID]extraAttempts{},
	}
	err := w.installation.admin.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultSessionClass}, f.class)
	if err != nil {
		return nil, err
	}
	f.uids[f.class.UID] = true
	for _, namespace := range namespaces {
		for _, list := range []client.ObjectList{
			&v1alpha1.ConversationList{}, &v1alpha1.UserSettingsList{}, &corev1.PodList{}, &corev1.SecretList{},
			&corev1.ConfigMapList{}, &corev1.PersistentVolumeClaimList{},
		} {
			if err := w.installation.admin.List(ctx, list, client.InNamespace(namespace)); err != nil {
				return nil, err
			}
			items, err := meta.ExtractList(list)
			if err != nil {
				return nil, err
			}
			for _, item := range items {
				f.add(item.(client.Object))
			}
		}
	}
	return f, nil
}

func (f *found) add(o client.Object) {
	key := client.ObjectKeyFromObject(o)
	f.uids[o.GetUID()] = true
	switch o := o.(type) {
	case *v1alpha1.Conversation:
		f.conversations[key] = o
		if o.Status.State == v1alpha1.StateRunning {
			f.running[types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.UserSettingsName}]++
		}
		return
	case *v1alpha1.UserSettings:
		f.settings[key] = o
		return
	case *corev1.Pod:
		f.pods[key] = o
		if owner := uidOf(o); owner != "" {
			f.podsOf[owner] = o
		}
	case *corev1.Secret:
		f.secrets[key] = o
	}
	f.children = append(f.children, o)
}

func (w *world) problems(f *found) (all []problem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := map[types.NamespacedName]bool{}
	markers := map[string]*conversation{}
	for _, t := range w.requested {
		known[t.key()] = true
		markers[t.user.namespace+t.marker] = t
		all = append(all, t.problems(f)...)
	}
	for key, c := range f.conversations {
		// If the creation of a Conversation got no response, the client may not know the
		// Conversation's name. The first message then shows which request created the Conversation.
		t := markers[c.Namespace+ptr.Deref(c.Spec.InitialUserMsg, "")]
		if !known[key] && (t == nil || t.name != "" || !t.exists.has(true)) {
			all = append(all, problem{checkOnce, fmt.Sprintf("%s exists, but no client created it", key)})
		}
	}
	for _, u := range w.users {
		all = append(all, u.problems(f)...)
	}
	all = append(all, f.orphans()...)
	if size := w.installation.pool; size > 0 {
		all = append(all, f.poolProblems(size)...)
		w.report.note(checkPools, "pools of %d warm pods in %d namespaces", size, len(namespaces))
	}
	w.report.note(checkLost, "%d conversations requested, %d exist; %d settings", len(w.requested), len(f.conversations),
		len(f.settings))
	w.report.note(checkStates, "%d running", sum(f.running))
	w.report.note(checkOrphans, "%d pods, Secrets, ConfigMaps and volumes", len(f.children))
	return all
}

func sum(counts map[types.NamespacedName]int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

func (t *conversation) key() types.NamespacedName {
	return types.NamespacedName{Namespace: t.user.namespace, Name: t.name}
}

func (t *conversation) problems(f *found) (all []problem) {
	say := func(check, format string, args ...any) {
		all = append(all, problem{check, fmt.Sprintf("%s ", t) + fmt.Sprintf(format, args...)})
	}
	c := f.conversations[t.key()]
	switch {
	case t.name == "":
		return nil
	case c == nil && !t.exists.has(false):
		say(checkLost, "is lost")
		return all
	case c == nil:
		return nil
	case !t.exists.has(true):
		say(checkLost, "exists although its deletion was accepted")
		return all
	}
	if ptr.Deref(c.Spec.InitialUserMsg, "") != t.marker || c.Spec.UserSettingsName != t.user.name {
		say(checkLost, "differs: %q of %s", ptr.Deref(c.Spec.InitialUserMsg, ""), c.Spec.UserSettingsName)
	}
	if !t.suspended.has(c.Spec.Suspend) {
		say(checkLost, "has suspend %t, want %v", c.Spec.Suspend, t.suspended)
	}
	if c.Annotations[incompleteAnnotation] != "" {
		if !t.exists.has(false) {
			say(checkLost, "is incomplete")
		}
		return all // without its keys the session cannot start
	}
	if t.toolKey != "" {
		secret := f.secrets[types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.MCPConfig.SSEServers[0].APIKeyRef.Name}]
		if secret == nil || string(secret.Data[v1alpha1.ManagedSecretKey]) != t.toolKey {
			say(checkLost, "lacks the key of its tool server")
		}
	}
	s, restarts := c.Status, f.restarted(c.UID)
	described := fmt.Sprintf("has attempt %d after %d starts and %d restarts: %s", s.Attempt, t.starts, s.Restarts,
		s.LastRestart)
	if int(s.Restarts) > restarts {
		say(checkAttempts, "%s", described)
	} else if count := int(s.Attempt) - 1 - t.starts; count > 0 || s.LastRestart != "" && restarts == 0 {
		f.extra[c.UID] = extraAttempts{max(1, count), fmt.Sprintf("%s %s", t, described)}
	}
	if wrong := t.wrongState(c, f); wrong != "" {
		say(checkStates, "is %s, %s: %s; %s", c.Status.State, c.Status.Reason, c.Status.Message, wrong)
	}
	return all
}

func (t *conversation) wrongState(c *v1alpha1.Conversation, f *found) string {
	s := c.Status
	session := types.NamespacedName{Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name)}
	pod, secret := f.podsOf[c.UID], f.secrets[session]
	ready := meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady)
	waits := s.State == v1alpha1.StateStarting && s.Reason == v1alpha1.ReasonQueued
	full := f.running[types.NamespacedName{Namespace: c.Namespace, Name: c.Spec.UserSettingsName}] == maxRunning
	switch {
	case s.ObservedGeneration != c.Generation:
		return fmt.Sprintf("observed generation %d of %d", s.ObservedGeneration, c.Generation)
	case waits && !c.Spec.Suspend && full && pod == nil:
		return ""
	case !ready:
		return "not Ready"
	case s.State == v1alpha1.StateRunning:
		return t.wrongRun(c, pod, secret)
	case s.State != v1alpha1.StateStopped:
		return "neither running nor stopped"
	case secret != nil:
		return "the session's Secret still exists"
	case pod != nil && pod.Status.Phase != corev1.PodSucceeded:
		return "its pod still exists"
	case s.Reason == v1alpha1.ReasonCompleted && t.oneShot, s.Reason == v1alpha1.ReasonSuspended && c.Spec.Suspend:
		return ""
	}
	return "not the requested state"
}

func (t *conversation) wrongRun(c *v1alpha1.Conversation, pod *corev1.Pod, secret *corev1.Secret) string {
	switch {
	case c.Spec.Suspend || t.oneShot:
		return "it should have ended"
	case pod == nil || secret == nil || pod.Name != c.PodName():
		return "it has no pod or no Secret, or its status names another pod"
	case pod.Labels[v1alpha1.LabelAttempt] != strconv.Itoa(max(1, int(c.Status.Attempt))) || uidOf(pod) != c.UID:
		return "its pod belongs to another attempt"
	case pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning:
		return "its pod does not run"
	}
	return ""
}

func (u *user) problems(f *found) (all []problem) {
	say := func(check, format string, args ...any) {
		all = append(all, problem{check, fmt.Sprintf("settings of %s/%s: ", u.namespace, u.name) + fmt.Sprintf(format,
			args...)})
	}
	s := f.settings[types.NamespacedName{Namespace: u.namespace, Name: u.name}]
	if s == nil {
		say(checkLost, "they are lost")
		return all
	}
	valueOf := func(ref *v1alpha1.SecretKeyRef) string {
		if ref == nil {
			return ""
		}
		if secret := f.secrets[types.NamespacedName{Namespace: u.namespace, Name: ref.Name}]; secret != nil {
			return string(secret.Data[ref.Key])
		}
		return ""
	}
	if !u.settings.key.has(valueOf(s.Spec.LLMAPIKeyRef)) {
		say(checkLost, "the key is not the last one stored")
	}
	custom := slices.IndexFunc(s.Spec.SecretsStore.CustomSecrets,
		func(c v1alpha1.CustomSecret) bool { return c.Name == "TOKEN" })
	if custom < 0 || !u.settings.secret.has(valueOf(&s.Spec.SecretsStore.CustomSecrets[custom].SecretRef)) {
		say(checkLost, "the secret is not the last one stored")
	}
	if !u.settings.gitName.has(ptr.Deref(s.Spec.GitUserName, "")) {
		say(checkLost, "the name is %q, want one of %q", ptr.Deref(s.Spec.GitUserName, ""), u.settings.gitName)
	}
	if s.Spec.MaxIterations == nil || !u.settings.iterations.has(*s.Spec.MaxIterations) {
		say(checkLost, "maxIterations is not one of %v", u.settings.iterations)
	}
	if !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady) ||
		s.Status.ObservedGeneration != s.Generation {
		say(checkStates, "they are not Ready")
	}
	return all
}

// orphans returns objects of Parley without an owner, and objects whose owner no longer exists.
func (f *found) orphans() (all []problem) {
	for _, child := range f.children {
		owners := child.GetOwnerReferences()
		secret, isSecret := child.(*corev1.Secret)
		ours := child.GetLabels()[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy || isSecret &&
			secret.Type == v1alpha1.SecretTypeUserKey
		if ours && len(owners) == 0 {
			all = append(all, problem{checkOrphans, fmt.Sprintf("%T %s/%s has no owner", child, child.GetNamespace(),
				child.GetName())})
		}
		gone := func(o metav1.OwnerReference) bool { return !f.uids[o.UID] }
		if slices.ContainsFunc(owners, gone) {
			all = append(all, problem{checkOrphans, fmt.Sprintf("%T %s/%s: its owner is gone", child, child.GetNamespace(),
				child.GetName())})
		}
	}
	return all
}
