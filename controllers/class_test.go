package controllers

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// createClass creates a class with a unique name, since classes are cluster-scoped.
func createClass(t *testing.T, namespace string, spec v1alpha1.SessionClassSpec) string {
	t.Helper()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "of-" + namespace}, Spec: spec}
	create(t, class)
	t.Cleanup(func() { _ = env.Client.Delete(t.Context(), class) })
	return class.Name
}

func ofClass(name string) func(*v1alpha1.ConversationSpec) {
	return func(s *v1alpha1.ConversationSpec) { s.SessionClassName = &name }
}

func TestASessionGetsTheCABundleOfItsClass(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	const bundle = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	name := createClass(t, ns, v1alpha1.SessionClassSpec{Network: &v1alpha1.SessionNetwork{CABundle: bundle}})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "talk").With(ofClass(name)).Obj())
	secret := &corev1.Secret{}
	await(t, func() error {
		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName("talk")}, secret)
	})
	var doc session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil || doc.CABundle != bundle {
		t.Errorf("the session gets %q (%v)", doc.CABundle, err)
	}
}

func TestASessionWaitsUntilItsClassExistsAndAllowsItsSettings(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.RemoteRuntimeResourceFactor = ptr.To[int32](4)
	create(t, settings, makeConversation(ns, "c").With(ofClass("of-"+ns)).Obj())
	await(t, func() error {
		if c := getConversation(t, ns, "c"); !strings.Contains(c.Status.Message, "SessionClass of-"+ns+" does not exist") {
			return fmt.Errorf("%s %q", c.Status.Reason, c.Status.Message)
		}
		return nil
	})
	createClass(t, ns, v1alpha1.SessionClassSpec{Resources: &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](1)}})
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed)
	if !strings.Contains(c.Status.Message, "remoteRuntimeResourceFactor") ||
		!meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionStalled) {
		t.Errorf("%q, %+v", c.Status.Message, c.Status.Conditions)
	}
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.RemoteRuntimeResourceFactor = nil })
	if got := (kubelet{t, ns, "c"}).pod().Labels[v1alpha1.LabelSessionClass]; got != "of-"+ns {
		t.Errorf("the pod has class %q", got)
	}
}

func TestASessionKeepsTheClassItStartedWith(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.SessionClassName = ptr.To(createClass(t, ns, v1alpha1.SessionClassSpec{MaxRestarts: ptr.To[int32](2)}))
	create(t, settings, makeConversation(ns, "c").Obj())
	kubelet{t, ns, "c"}.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if err := env.Client.Delete(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	manager := managerClient(t)
	await(t, func() error { return gone(t, settings) })
	g := &gatherer{cache: asCache{manager}, metadata: asCache{manager}, live: manager}
	o, err := g.gather(t.Context(), c, memoryEntry{}, time.Now())
	if err != nil || o.Bounds.MaxRestarts != 2 {
		t.Errorf("without its settings, MaxRestarts is %d (%v)", o.Bounds.MaxRestarts, err)
	}
}

func TestARunningSessionKeepsTheLimitsItStartedWith(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	hours := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Hour} }
	lifetimes := func(fallback, most int) *v1alpha1.SessionLifetimes {
		return &v1alpha1.SessionLifetimes{MaxDuration: &v1alpha1.Lifetime{Default: hours(fallback), Max: hours(most)}}
	}
	settings := userSettings(ns, "ada")
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{
		Name: createClass(t, ns, v1alpha1.SessionClassSpec{Lifetimes: lifetimes(40, 50)})}}
	settings.Spec.SessionClassName = &class.Name
	// The class allows a duration of 45 hours when the session starts. After a later change, the
	// class allows only 2 hours.
	longer := makeConversation(ns, "longer").With(func(s *v1alpha1.ConversationSpec) { s.MaxDuration = hours(45) }).Obj()
	create(t, settings, makeConversation(ns, "c").Obj(), longer)
	for _, name := range []string{"c", "longer"} {
		kubelet{t, ns, name}.start()
		awaitState(t, ns, name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
	manager := managerClient(t)
	g := &gatherer{cache: asCache{manager}, metadata: asCache{manager}, live: manager}
	expect := func(when, name string, want int) {
		t.Helper()
		o, err := g.gather(t.Context(), getConversation(t, ns, name), memoryEntry{}, time.Now())
		if err != nil || o.Bounds.MaxDuration != hours(want).Duration {
			t.Errorf("%s, the maximum duration of %s is %s (%v)", when, name, o.Bounds.MaxDuration, err)
		}
	}
	change(t, class, func(c *v1alpha1.SessionClass) { c.Spec.Lifetimes = lifetimes(1, 2) })
	expect("in a stricter class", "c", 40)
	expect("in a stricter class", "longer", 45)
	if err := env.Client.Delete(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Delete(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	expect("without a class", "c", 40)
	// The webhook would refuse this change, but no webhook runs in this suite. The controller must
	// still apply the limit of 50 hours, which was recorded when the session started.
	change(t, longer, func(c *v1alpha1.Conversation) { c.Spec.MaxDuration = hours(0) })
	expect("without a class, with no limit requested", "longer", 50)
}

func TestAStricterClassBlocksReplacementPodsOnlyIfSettingsExceedIt(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: createClass(t, ns, v1alpha1.SessionClassSpec{
		MaxIterations: ptr.To[int32](100), MaxBudgetPerTask: ptr.To("5"), ExposeGitTokenToAgent: ptr.To(true)})}}
	chosen := userSettings(ns, "bob")
	chosen.Spec.MaxIterations = ptr.To[int32](50)
	create(t, userSettings(ns, "ada"), chosen,
		makeConversation(ns, "default").With(ofClass(class.Name)).Obj(),
		makeConversation(ns, "chosen").With(ofClass(class.Name)).With(
			func(s *v1alpha1.ConversationSpec) { s.UserSettingsName = "bob" }).Obj())
	sessions := []kubelet{{t, ns, "default"}, {t, ns, "chosen"}}
	for _, k := range sessions {
		k.start()
		awaitState(t, ns, k.name, v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	}
	change(t, class, func(c *v1alpha1.SessionClass) {
		c.Spec.MaxIterations, c.Spec.MaxBudgetPerTask = ptr.To[int32](10), ptr.To("1")
		c.Spec.ExposeGitTokenToAgent = ptr.To(false)
	})
	for _, k := range sessions {
		k.lose()
	}
	sessions[0].awaitAttempt("2")
	c := awaitState(t, ns, "chosen", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed)
	if !strings.Contains(c.Status.Message, "UserSettings spec.maxIterations") {
		t.Errorf("the message is %q", c.Status.Message)
	}
}

func TestAVolumeOfAClassIsDeletedAfterTheTTLOfTheClass(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	// The class names a StorageClass, so it needs no default StorageClass.
	name := createClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{
		Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")},
		TTL:       &metav1.Duration{Duration: time.Second},
	}})
	conv := withTask(ns, "c").With(ofClass(name)).Obj()
	create(t, userSettings(ns, "ada"), conv)
	k := kubelet{t, ns, "c"}
	k.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if c.Status.Workspace != v1alpha1.WorkspaceClass {
		t.Errorf("its workspace is %s", c.Status.Workspace)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-workspace"}}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil ||
		*claim.Spec.StorageClassName != "fast" {
		t.Fatalf("the claim is %+v, %v", claim.Spec, err)
	}
	change(t, conv, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	k.release()
	await(t, func() error {
		// A claim with a deletion timestamp counts as deleted, because no controller in this test
		// removes its finalizer.
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err == nil &&
			claim.DeletionTimestamp == nil {
			return fmt.Errorf("the claim still exists")
		}
		return nil
	})
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
}

// This test is not parallel, because the default StorageClass is cluster-wide.
func TestWithoutADefaultStorageClassASessionUsesScratchSpaceAndReportsIt(t *testing.T) {
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	name := createClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{
		Size: "1Gi"}}})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").With(ofClass(name)).Obj())
	kubelet{t, ns, "c"}.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if condition := meta.FindStatusCondition(c.Status.Conditions,
		v1alpha1.ConditionWorkspaceReady); c.Status.Workspace != v1alpha1.WorkspaceScratch ||
		condition == nil || condition.Reason != v1alpha1.ReasonNoStorageClass || !strings.Contains(condition.Message,
		"default") {
		t.Errorf("workspace %s, %+v", c.Status.Workspace, c.Status.Conditions)
	}
	awaitEvents(t, ns, v1alpha1.ReasonNoStorageClass)

	standard := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "standard-" + ns,
		Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "example.com/none"}
	create(t, standard)
	t.Cleanup(func() { _ = env.Client.Delete(t.Context(), standard) })
	create(t, makeConversation(ns, "later").With(ofClass(name)).Obj())
	kubelet{t, ns, "later"}.start()
	if c := awaitState(t, ns, "later", v1alpha1.StateRunning,
		v1alpha1.ReasonRunning); c.Status.Workspace != v1alpha1.WorkspaceClass {
		t.Errorf("with a default StorageClass, the workspace is %s", c.Status.Workspace)
	}
}

func TestASessionWhoseWorkspaceExceedsItsClassDoesNotStart(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: createClass(t, ns, v1alpha1.SessionClassSpec{
		WorkspaceLimits: &v1alpha1.WorkspaceLimits{MaxSize: ptr.To(resource.MustParse("1Gi"))}})}}
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").With(ofClass(class.Name)).With(
		func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "2Gi"} }).Obj())
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed)
	if !strings.Contains(c.Status.Message, "spec.workspace.size: SessionClass "+class.Name+" allows at most 1Gi") ||
		!meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionStalled) {
		t.Errorf("%q, %+v", c.Status.Message, c.Status.Conditions)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c-workspace"}}
	if err := gone(t, claim); err != nil {
		t.Error(err)
	}
	change(t, class, func(c *v1alpha1.SessionClass) {
		c.Spec.WorkspaceLimits.MaxSize = ptr.To(resource.MustParse("2Gi"))
	})
	k := kubelet{t, ns, "c"}
	k.start()
	conversation := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	// The class becomes stricter. The session then cannot start again, but its volume must stay.
	change(t, class, func(c *v1alpha1.SessionClass) {
		c.Spec.WorkspaceLimits = &v1alpha1.WorkspaceLimits{StorageClassNames: []string{"slow"}}
	})
	change(t, conversation, func(c *v1alpha1.Conversation) { c.Spec.Suspend = true })
	k.release()
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	change(t, conversation, func(c *v1alpha1.Conversation) { c.Spec.Suspend = false })
	c = awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed)
	if !strings.Contains(c.Status.Message, "spec.workspace.storageClassName") || gone(t, claim) == nil {
		t.Errorf("%q", c.Status.Message)
	}
}
