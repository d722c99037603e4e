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

// everyClassField is a class that says something of everything that a pod shows.
func everyClassField() v1alpha1.SessionClassSpec {
	return v1alpha1.SessionClassSpec{
		Placement: &v1alpha1.SessionPlacement{
			NodeSelector: map[string]string{"pool": "sessions"}, Tolerations: []corev1.Toleration{{Key: "sessions",
				Operator: corev1.TolerationOpExists}},
			RuntimeClassName: ptr.To("gvisor"), PriorityClassName: ptr.To("low"),
			Labels:      map[string]string{"team": "a", v1alpha1.LabelManagedBy: "somebody"},
			Annotations: map[string]string{"note": "x"},
		},
		Images: &v1alpha1.SessionImages{
			Default: ptr.To("example.com/tools:1"), PullPolicy: ptr.To(corev1.PullNever),
			PullSecrets: []v1alpha1.PullSecret{{Name: "registry"}}, RunAsUser: ptr.To[int64](0),
		},
		Resources: &v1alpha1.SessionResources{
			Requests: resources("100m", "256Mi"), Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
			ScratchSize: ptr.To(resource.MustParse("5Gi")),
		},
		Network: &v1alpha1.SessionNetwork{HTTPProxy: "http://proxy:3128", HTTPSProxy: "http://proxy:3128", NoProxy: "svc"},
	}
}

func TestWhatAClassDoesNotAllow(t *testing.T) {
	atMost := func(d time.Duration) *v1alpha1.Lifetime {
		return &v1alpha1.Lifetime{Max: &metav1.Duration{Duration: d}}
	}
	hours := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Hour} }
	of := class{"small", v1alpha1.SessionClassSpec{
		Images:    &v1alpha1.SessionImages{Allowed: []string{"example.com/team/*", "debian:?3"}},
		Resources: &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](2)},
		Lifetimes: &v1alpha1.SessionLifetimes{IdleTimeout: atMost(time.Hour), StartDeadline: atMost(time.Hour),
			MaxDuration: atMost(8 * time.Hour), TTLAfterStopped: atMost(time.Hour)},
		MaxIterations: ptr.To[int32](100), MaxBudgetPerTask: ptr.To("4.50"), Agents: []string{"coder"},
	}}
	for name, c := range map[string]struct {
		spec     v1alpha1.ConversationSpec
		settings v1alpha1.UserSettingsSpec
		agent    *session.Agent
		field    string
	}{
		"nothing special": {},
		"as much as it allows": {spec: v1alpha1.ConversationSpec{MaxDuration: hours(8)},
			settings: v1alpha1.UserSettingsSpec{RemoteRuntimeResourceFactor: ptr.To[int32](2), MaxIterations: ptr.To[int32](100),
				MaxBudgetPerTask: ptr.To("4.5"), Agent: ptr.To("coder")}},
		"an image of the team": {settings: v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: ptr.To(
			"example.com/team/deep/base:1")}},
		"an image of another version": {settings: v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: ptr.To(
			"debian:12")}, field: "UserSettings spec.sandboxBaseContainerImage"},
		"an image of others": {settings: v1alpha1.UserSettingsSpec{SandboxRuntimeContainerImage: ptr.To(
			"example.com/other/x:1")}, field: "UserSettings spec.sandboxRuntimeContainerImage"},
		"an agent's image": {agent: &session.Agent{Name: "coder", Image: "example.com/other/x:1"},
			field: "the image of agent coder"},
		"a factor": {settings: v1alpha1.UserSettingsSpec{
			RemoteRuntimeResourceFactor: ptr.To[int32](4)}, field: "UserSettings spec.remoteRuntimeResourceFactor"},
		"iterations": {settings: v1alpha1.UserSettingsSpec{MaxIterations: ptr.To[int32](101)},
			field: "UserSettings spec.maxIterations"},
		"a budget": {settings: v1alpha1.UserSettingsSpec{MaxBudgetPerTask: ptr.To("10")},
			field: "UserSettings spec.maxBudgetPerTask"},
		"the agent of settings that name none": {agent: &session.Agent{Name: session.DefaultAgent},
			field: "UserSettings spec.agent"},
		"an agent":         {settings: v1alpha1.UserSettingsSpec{Agent: ptr.To("other")}, field: "UserSettings spec.agent"},
		"idling":           {spec: v1alpha1.ConversationSpec{IdleTimeout: hours(2)}, field: "spec.idleTimeout"},
		"idling for ever":  {spec: v1alpha1.ConversationSpec{IdleTimeout: hours(0)}, field: "spec.idleTimeout"},
		"a start":          {spec: v1alpha1.ConversationSpec{StartDeadline: hours(2)}, field: "spec.startDeadline"},
		"running for ever": {spec: v1alpha1.ConversationSpec{MaxDuration: hours(0)}, field: "spec.maxDuration"},
		"staying":          {spec: v1alpha1.ConversationSpec{TTLAfterStopped: hours(2)}, field: "spec.ttlAfterStopped"},
		"going at once":    {spec: v1alpha1.ConversationSpec{TTLAfterStopped: hours(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			refused := of.notAllowed(&v1alpha1.Conversation{Spec: c.spec}, &c.settings, c.agent)
			switch {
			case c.field == "" && refused != nil:
				t.Errorf("refused: %s", refused.message)
			case c.field != "" && (refused == nil || !strings.HasPrefix(refused.message, c.field+": SessionClass small allows")):
				t.Errorf("got %+v", refused)
			}
		})
	}
}

func TestLifetimesAreAskedForOrTheClasses(t *testing.T) {
	of := class{spec: v1alpha1.SessionClassSpec{
		Lifetimes: &v1alpha1.SessionLifetimes{MaxDuration: &v1alpha1.Lifetime{Default: &metav1.Duration{
			Duration: time.Hour}}},
		MaxRestarts: ptr.To[int32](2),
	}}
	if got := of.bounds(&v1alpha1.ConversationSpec{}); got.maxDuration != time.Hour || got.idleTimeout != 30*time.Minute ||
		got.startDeadline != 10*time.Minute || got.restarts != 2 || got.ttl != nil {
		t.Errorf("got %+v", got)
	}
	asked := &v1alpha1.ConversationSpec{MaxDuration: &metav1.Duration{Duration: time.Minute},
		TTLAfterStopped: &metav1.Duration{}}
	if got := of.bounds(asked); got.maxDuration != time.Minute || got.ttl == nil || *got.ttl != 0 {
		t.Errorf("got %+v", got)
	}
	narrow := &v1alpha1.Lifetime{Max: &metav1.Duration{Duration: time.Minute}}
	bounded := class{spec: v1alpha1.SessionClassSpec{Lifetimes: &v1alpha1.SessionLifetimes{IdleTimeout: narrow,
		StartDeadline: narrow, MaxDuration: narrow, TTLAfterStopped: narrow}}}
	if got := bounded.bounds(&v1alpha1.ConversationSpec{}); got.idleTimeout != time.Minute ||
		got.startDeadline != time.Minute || got.maxDuration != time.Minute || got.ttl != nil {
		t.Errorf("what nobody asks for exceeds the class: %+v", got)
	}
	if got := (class{}).bounds(&v1alpha1.ConversationSpec{}); got.maxDuration != 24*time.Hour || got.restarts != 5 {
		t.Errorf("got %+v", got)
	}
}

func TestWhatSettingsLeaveOutIsBoundedByTheClass(t *testing.T) {
	of := class{spec: v1alpha1.SessionClassSpec{MaxIterations: ptr.To[int32](100), MaxBudgetPerTask: ptr.To("4.50")}}
	if got := of.bounded(&v1alpha1.UserSettingsSpec{}); ptr.Deref(got.MaxIterations, 0) != 100 ||
		ptr.Deref(got.MaxBudgetPerTask, "") != "4.50" {
		t.Errorf("got %v iterations and a budget of %v", got.MaxIterations, got.MaxBudgetPerTask)
	}
	asked := &v1alpha1.UserSettingsSpec{MaxIterations: ptr.To[int32](7), MaxBudgetPerTask: ptr.To("1")}
	if got := of.bounded(asked); *got.MaxIterations != 7 || *got.MaxBudgetPerTask != "1" {
		t.Errorf("got %d iterations and a budget of %s", *got.MaxIterations, *got.MaxBudgetPerTask)
	}
}

// aClass makes one of a name of its own, for it is the whole cluster's.
func aClass(t *testing.T, namespace string, spec v1alpha1.SessionClassSpec) string {
	t.Helper()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "of-" + namespace}, Spec: spec}
	create(t, class)
	t.Cleanup(func() { _ = env.Client.Delete(t.Context(), class) })
	return class.Name
}

func ofClass(name string) func(*v1alpha1.ConversationSpec) {
	return func(s *v1alpha1.ConversationSpec) { s.SessionClassName = &name }
}

func TestASessionIsToldTheAuthoritiesOfItsClass(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	const bundle = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	name := aClass(t, ns, v1alpha1.SessionClassSpec{Network: &v1alpha1.SessionNetwork{CABundle: bundle}})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "talk").with(ofClass(name)).obj())
	secret := &corev1.Secret{}
	await(t, func() error {
		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: v1alpha1.SessionName("talk")}, secret)
	})
	var doc session.Document
	if err := json.Unmarshal(secret.Data[session.DocumentFile], &doc); err != nil || doc.CABundle != bundle {
		t.Errorf("the session is told %q (%v)", doc.CABundle, err)
	}
}

func TestASessionWaitsForItsClassAndForWhatItAllows(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.RemoteRuntimeResourceFactor = ptr.To[int32](4)
	create(t, settings, makeConversation(ns, "c").with(ofClass("of-"+ns)).obj())
	await(t, func() error {
		if c := theConversation(t, ns, "c"); !strings.Contains(c.Status.Message, "SessionClass of-"+ns+" does not exist") {
			return fmt.Errorf("%s %q", c.Status.Reason, c.Status.Message)
		}
		return nil
	})
	aClass(t, ns, v1alpha1.SessionClassSpec{Resources: &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](1)}})
	c := awaitState(t, ns, "c", v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed)
	if !strings.Contains(c.Status.Message, "remoteRuntimeResourceFactor") ||
		!meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionStalled) {
		t.Errorf("%q, %+v", c.Status.Message, c.Status.Conditions)
	}
	change(t, settings, func(s *v1alpha1.UserSettings) { s.Spec.RemoteRuntimeResourceFactor = nil })
	if got := (kubelet{t, ns, "c"}).pod().Labels[v1alpha1.LabelSessionClass]; got != "of-"+ns {
		t.Errorf("the pod is of class %q", got)
	}
}

func TestASessionStaysOfTheClassThatItStartedWith(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	settings := userSettings(ns, "ada")
	settings.Spec.SessionClassName = ptr.To(aClass(t, ns, v1alpha1.SessionClassSpec{MaxRestarts: ptr.To[int32](2)}))
	create(t, settings, makeConversation(ns, "c").obj())
	kubelet{t, ns, "c"}.start()
	c := awaitState(t, ns, "c", v1alpha1.StateRunning, v1alpha1.ReasonRunning)
	if err := env.Client.Delete(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	manager := managerClient(t)
	await(t, func() error { return gone(t, settings) })
	o, _, err := newProcess(manager, manager).gather(t.Context(), c)
	if err != nil || o.bounds.restarts != 2 {
		t.Errorf("without its settings it may restart %d times (%v)", o.bounds.restarts, err)
	}
}

func TestAClassGivesAWorkspaceAndTakesItAwayAgain(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	// A class that names a StorageClass needs no default one.
	name := aClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{
		Workspace: v1alpha1.Workspace{Size: "1Gi", StorageClassName: ptr.To("fast")},
		TTL:       &metav1.Duration{Duration: time.Second},
	}})
	conv := working(ns, "c").with(ofClass(name)).obj()
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
	k.letGo()
	await(t, func() error {
		// Nothing here takes a claim's protection off once its pod is gone, as a cluster does.
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err == nil &&
			claim.DeletionTimestamp == nil {
			return fmt.Errorf("the claim is still there")
		}
		return nil
	})
	awaitState(t, ns, "c", v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
}

// Not parallel: whether there is a default StorageClass is the whole cluster's matter.
func TestWithoutADefaultStorageClassASessionHasScratchSpaceAndSaysSo(t *testing.T) {
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	name := aClass(t, ns, v1alpha1.SessionClassSpec{Workspace: &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{
		Size: "1Gi"}}})
	create(t, userSettings(ns, "ada"), makeConversation(ns, "c").with(ofClass(name)).obj())
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
	create(t, makeConversation(ns, "later").with(ofClass(name)).obj())
	kubelet{t, ns, "later"}.start()
	if c := awaitState(t, ns, "later", v1alpha1.StateRunning,
		v1alpha1.ReasonRunning); c.Status.Workspace != v1alpha1.WorkspaceClass {
		t.Errorf("with one, its workspace is %s", c.Status.Workspace)
	}
}
