package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/controllers/objects"
)

// gatherer reads the inputs of verdicts, and the inputs that are needed to start sessions. It
// cannot write.
type gatherer struct {
	cache    client.Reader
	metadata client.Reader // the cached metadata of Secrets and ConfigMaps
	live     client.Reader // bypasses the cache
	options  Options
	turns    *turnPoller
	binds    *binds
	// operatorObjects holds a parsedObject for each object in the operator's namespace that the
	// start of a session needs.
	operatorObjects sync.Map
}

// gathered is an observation. It also contains values that are needed to start the session and to
// count metrics.
type gathered struct {
	lifecycle.Observation
	class objects.Class
	// analytics is set if the user consents to usage metrics.
	analytics bool
	// missing is the name of the Secret or ConfigMap that was missing at the last attempt to start
	// the session, if any.
	missing string
}

func (g *gatherer) gather(ctx context.Context, c *v1alpha1.Conversation, known memoryEntry, now time.Time) (gathered,
	error) {
	o := gathered{Observation: lifecycle.Observation{Conversation: c, Now: now}, missing: known.missing}
	if err := g.gatherPod(ctx, &o, known); err != nil {
		return o, err
	}
	o.WorkspaceClaim = lifecycle.WorkspaceClaim(o.Pod)
	if err := g.gatherWarm(ctx, &o); err != nil {
		return o, err
	}
	settings, err := g.settings(ctx, g.cache, &o)
	if err == nil && !o.SettingsExist && lifecycle.HasStarted(o.Observation) {
		settings, err = g.settings(ctx, g.live, &o) // the end of a session must not depend on a stale cache
	}
	if err != nil {
		return o, err
	}
	o.analytics = o.SettingsExist && ptr.Deref(settings.Spec.UserConsentsToAnalytics, false)
	o.Turn, o.TurnKnown = g.turns.reported(c)
	if o.NoModel, err = g.stillLacksModel(ctx, c, settings); err != nil {
		return o, err
	}
	o.Scratch = c.Spec.Workspace == nil && lifecycle.WorkspaceKind(o.Observation) != v1alpha1.WorkspaceClass
	return o, g.gatherClass(ctx, &o, &settings.Spec)
}

// settings reads the UserSettings object of a session, and records in the observation whether the
// object exists. An object that the session does not belong to counts as missing.
func (g *gatherer) settings(ctx context.Context, from client.Reader, o *gathered) (*v1alpha1.UserSettings, error) {
	c, settings := o.Conversation, &v1alpha1.UserSettings{}
	o.OtherOwner = false
	err := from.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.UserSettingsName}, settings)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read UserSettings: %w", err)
	}
	// The deletion of a UserSettings object ends its sessions, even if the object is immediately
	// created again. The new object has another UID. Until the session runs in the current attempt,
	// the UID in the status may be outdated, so it is not compared.
	recreated := lifecycle.Ran(c.Status) && c.Status.StopTime == nil && c.Status.SettingsUID != "" &&
		c.Status.SettingsUID != settings.UID
	if !c.BelongsTo(settings) || recreated {
		o.OtherOwner = settings.UID != "" && settings.UID == c.Status.SettingsUID
		*settings = v1alpha1.UserSettings{}
	}
	o.SettingsExist, o.SettingsUID = settings.UID != "" && settings.DeletionTimestamp == nil, settings.UID
	o.SettingsOwner = settings.OwnerName()
	return settings, nil
}

// gatherClass finds the class of the session and its bounds. A session keeps the class and bounds
// that it started with, even if its settings or the class change.
func (g *gatherer) gatherClass(ctx context.Context, o *gathered, settings *v1alpha1.UserSettingsSpec) error {
	c := o.Conversation
	o.ClassName = objects.ClassName(c, settings)
	started := lifecycle.StartedClass(c.Status)
	switch {
	case started != nil:
		o.ClassName = started.Name
	case o.Pod != nil:
		o.ClassName = cmp.Or(o.Pod.Labels[v1alpha1.LabelSessionClass], o.ClassName)
	}
	class, _, err := g.classNamed(ctx, o.ClassName)
	if err != nil {
		return err
	}
	o.class, o.ClassVolume = class, class.Spec.Workspace != nil
	switch {
	case started != nil:
		o.ClassBounds = lifecycle.RecordedBounds(started)
	case o.Pod == nil && !o.SettingsExist && c.Spec.SessionClassName == nil:
		// The class is unknown: only the settings could name it, and they are missing. Use the
		// default class, but without its TTLs, because the real class may have longer ones.
		o.ClassBounds = class.Bounds()
		o.ClassBounds.TTL, o.ClassBounds.WorkspaceTTL = nil, nil
	default:
		o.ClassBounds = class.Bounds()
	}
	o.Bounds = o.ClassBounds.For(&c.Spec)
	return nil
}

// cachedPods returns the session's pods in the cache: the pod with the default name, and adopted
// warm pods. The pod of the current attempt comes first. If there is no pod, cachedPods returns a
// NotFound error. If a foreign pod has the name that the session's pod needs, it returns neither a
// pod nor an error.
func (g *gatherer) cachedPods(ctx context.Context, c *v1alpha1.Conversation) ([]*corev1.Pod, error) {
	pod := &corev1.Pod{}
	missing := g.cache.Get(ctx, sessionObject(c), pod)
	if client.IgnoreNotFound(missing) != nil {
		return nil, missing
	}
	adopted, err := adoptedPods(ctx, g.cache, client.ObjectKeyFromObject(c))
	if err != nil {
		return nil, err
	}
	pods := []*corev1.Pod{pod}
	for i := range adopted {
		pods = append(pods, &adopted[i])
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !owned(pod, c) })
	rank := func(pod *corev1.Pod) int {
		switch {
		case lifecycle.LabelledAttempt(pod.Labels) != lifecycle.Attempt(c.Status):
			return 2
		case pod.Name != c.PodName():
			return 1
		}
		return 0
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return rank(a) - rank(b) })
	if len(pods) == 0 && missing == nil && podObject(c) != sessionObject(c) {
		// A foreign pod has the default name, but the session's pod has another name.
		missing = apierrors.NewNotFound(corev1.Resource("pods"), c.PodName())
	}
	if len(pods) > 0 {
		missing = nil
	}
	return pods, missing
}

// adoptedPods returns the warm pods in the cache that a Conversation with this name adopted.
func adoptedPods(ctx context.Context, cached client.Reader, conversation client.ObjectKey) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := cached.List(ctx, &pods, client.InNamespace(conversation.Namespace),
		client.MatchingFields{indexSession: conversation.Name})
	return pods.Items, err
}

// podObject returns the key of the session's pod: with the recorded name if the current attempt
// ran, or else with the default name.
func podObject(c *v1alpha1.Conversation) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: c.PodName()}
}

func (g *gatherer) gatherPod(ctx context.Context, o *gathered, known memoryEntry) error {
	c, attempt := o.Conversation, lifecycle.Attempt(o.Conversation.Status)
	pods, err := g.cachedPods(ctx, c)
	missing := len(pods) == 0 || lifecycle.LabelledAttempt(pods[0].Labels) != attempt
	if client.IgnoreNotFound(err) == nil && missing && lifecycle.Ran(c.Status) && c.Status.State != v1alpha1.StateStopped {
		// A session that ran and has no pod counts as lost. The cache may be stale, so a live read
		// must confirm that the pod is gone. A pod without its labels counts as gone, because no
		// network policy selects it.
		pod := &corev1.Pod{}
		err = g.live.Get(ctx, podObject(c), pod)
		if err == nil && owned(pod, c) && pod.Labels[v1alpha1.LabelManagedBy] == v1alpha1.ManagedBy {
			pods = slices.DeleteFunc(pods, func(old *corev1.Pod) bool { return old.Name == pod.Name })
			pods = slices.Insert(pods, 0, pod)
		}
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Pod: %w", err)
	}
	if len(pods) > 0 && lifecycle.LabelledAttempt(pods[0].Labels) == attempt {
		o.Pod, pods = pods[0], pods[1:]
	}
	if o.Pod == nil && len(pods) == 0 {
		o.PodExpected = err != nil && known.expectsPod(c, o.Now)
	}
	if len(pods) == 0 {
		return nil
	}
	if o.OldPod = pods[0]; lifecycle.LabelledAttempt(o.OldPod.Labels) >= attempt {
		return g.checkFresh(ctx, c)
	}
	return nil
}

var errStale = errors.New("the cached Conversation is stale")

// checkFresh returns errStale if the cached Conversation is not the current version. It is called
// before actions that cannot be undone.
func (g *gatherer) checkFresh(ctx context.Context, c *v1alpha1.Conversation) error {
	current := &metav1.PartialObjectMetadata{}
	current.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Conversation"))
	if err := g.live.Get(ctx, client.ObjectKeyFromObject(c), current); err != nil {
		return fmt.Errorf("read Conversation: %w", err)
	}
	if current.ResourceVersion != c.ResourceVersion {
		return errStale
	}
	return nil
}

// classNamed returns a class, or a blocker if the class does not exist. If the class "default" does
// not exist, the operator's defaults replace it.
func (g *gatherer) classNamed(ctx context.Context, name string) (objects.Class, *lifecycle.Blocker, error) {
	found := &v1alpha1.SessionClass{}
	err := g.cache.Get(ctx, client.ObjectKey{Name: name}, found)
	class := objects.Class{Name: name, Spec: found.Spec}
	switch {
	case client.IgnoreNotFound(err) != nil:
		return class, nil, fmt.Errorf("read SessionClass: %w", err)
	case err != nil && name != v1alpha1.DefaultSessionClass:
		return class, lifecycle.NewBlocker(v1alpha1.ReasonClassNotFound, "SessionClass %s does not exist", name), nil
	}
	return class, nil, nil
}

type parsedObject struct {
	uid             types.UID
	resourceVersion string
	value           any
}

// operatorObject reads an object in the operator's namespace into o, and returns parse(o). It
// stores the result, and reads the object again only when the object has changed. A read costs the
// API server about 100 KiB, and parsing the model prices costs the manager a millisecond. Callers
// must not modify the result.
func operatorObject[O client.Object, T any](ctx context.Context, g *gatherer, kind, name string, o O,
	parse func(O) T) (result T, err error) {
	key, cached := client.ObjectKey{Namespace: g.options.Namespace, Name: name}, &metav1.PartialObjectMetadata{}
	cached.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	if err := g.metadata.Get(ctx, key, cached); client.IgnoreNotFound(err) != nil {
		return result, fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	if known, found := g.operatorObjects.Load(kind + name); found && known.(parsedObject).uid == cached.UID &&
		known.(parsedObject).resourceVersion == cached.ResourceVersion {
		return known.(parsedObject).value.(T), nil
	}
	if err := g.live.Get(ctx, key, o); err != nil {
		return result, fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	result = parse(o)
	g.operatorObjects.Store(kind+name, parsedObject{o.GetUID(), o.GetResourceVersion(), result})
	return result, nil
}

// sessionObject returns the key of the session's Secret. The session's pod has the same key, unless
// the session adopted a warm pod.
func sessionObject(c *v1alpha1.Conversation) client.ObjectKey {
	return client.ObjectKey{Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name)}
}
