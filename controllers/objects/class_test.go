package objects

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// everyClassField returns a class with a value for every field that affects the pod.
func everyClassField() v1alpha1.SessionClassSpec {
	return v1alpha1.SessionClassSpec{
		Placement: &v1alpha1.SessionPlacement{
			NodeSelector: map[string]string{"pool": "sessions"}, Tolerations: []corev1.Toleration{{Key: "sessions",
				Operator: corev1.TolerationOpExists}},
			RuntimeClassName: ptr.To("gvisor"), PriorityClassName: ptr.To("low"),
			Labels:      map[string]string{"team": "a", v1alpha1.LabelManagedBy: "another-operator"},
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

func TestAClassLimitsContainerImagesResourcesAndLifetimes(t *testing.T) {
	atMost := func(d time.Duration) *v1alpha1.Lifetime {
		return &v1alpha1.Lifetime{Max: &metav1.Duration{Duration: d}}
	}
	hours := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Hour} }
	class := Class{"small", v1alpha1.SessionClassSpec{
		Images:    &v1alpha1.SessionImages{Allowed: []string{"example.com/team/*", "debian:?3"}},
		Resources: &v1alpha1.SessionResources{MaxFactor: ptr.To[int32](2)},
		Lifetimes: &v1alpha1.SessionLifetimes{IdleTimeout: atMost(time.Hour), StartDeadline: atMost(time.Hour),
			MaxDuration: atMost(8 * time.Hour), TTLAfterStopped: atMost(time.Hour)},
		MaxIterations: ptr.To[int32](100), MaxBudgetPerTask: ptr.To("4.50"), Agents: []string{"coder"},
		ExposeGitTokenToAgent: ptr.To(false),
	}}
	for name, c := range map[string]struct {
		spec     v1alpha1.ConversationSpec
		settings v1alpha1.UserSettingsSpec
		agent    *session.Agent
		field    string
	}{
		"no requests": {},
		"requests at the limits": {spec: v1alpha1.ConversationSpec{MaxDuration: hours(8)},
			settings: v1alpha1.UserSettingsSpec{RemoteRuntimeResourceFactor: ptr.To[int32](2), MaxIterations: ptr.To[int32](100),
				MaxBudgetPerTask: ptr.To("4.5"), Agent: ptr.To("coder")}},
		"an allowed image": {settings: v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: ptr.To(
			"example.com/team/deep/base:1")}},
		"a version that is not allowed": {settings: v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: ptr.To(
			"debian:12")}, field: "UserSettings spec.sandboxBaseContainerImage"},
		"an image that is not allowed": {settings: v1alpha1.UserSettingsSpec{SandboxRuntimeContainerImage: ptr.To(
			"example.com/other/x:1")}, field: "UserSettings spec.sandboxRuntimeContainerImage"},
		"an agent image that is not allowed": {agent: &session.Agent{Name: "coder", Image: "example.com/other/x:1"},
			field: "the image of agent coder"},
		"resource factor above the limit": {settings: v1alpha1.UserSettingsSpec{
			RemoteRuntimeResourceFactor: ptr.To[int32](4)}, field: "UserSettings spec.remoteRuntimeResourceFactor"},
		"iterations above the limit": {settings: v1alpha1.UserSettingsSpec{MaxIterations: ptr.To[int32](101)},
			field: "UserSettings spec.maxIterations"},
		"budget above the limit": {settings: v1alpha1.UserSettingsSpec{MaxBudgetPerTask: ptr.To("10")},
			field: "UserSettings spec.maxBudgetPerTask"},
		"the git token for the agent": {settings: v1alpha1.UserSettingsSpec{ExposeGitTokenToAgent: ptr.To(true)},
			field: "UserSettings spec.exposeGitTokenToAgent"},
		"no git token for the agent": {settings: v1alpha1.UserSettingsSpec{ExposeGitTokenToAgent: ptr.To(false)}},
		"a default agent that is not allowed": {agent: &session.Agent{Name: session.DefaultAgent},
			field: "UserSettings spec.agent"},
		"an agent that is not allowed": {settings: v1alpha1.UserSettingsSpec{Agent: ptr.To("other")},
			field: "UserSettings spec.agent"},
		"an agent of the Conversation that is not allowed": {spec: v1alpha1.ConversationSpec{Agent: ptr.To("other")},
			agent: &session.Agent{Name: "other"}, field: "spec.agent"},
		"idle timeout above the limit": {spec: v1alpha1.ConversationSpec{IdleTimeout: hours(2)}, field: "spec.idleTimeout"},
		"no idle timeout":              {spec: v1alpha1.ConversationSpec{IdleTimeout: hours(0)}, field: "spec.idleTimeout"},
		"start deadline above the limit": {spec: v1alpha1.ConversationSpec{StartDeadline: hours(2)},
			field: "spec.startDeadline"},
		"no maximum duration": {spec: v1alpha1.ConversationSpec{MaxDuration: hours(0)}, field: "spec.maxDuration"},
		"TTL above the limit": {spec: v1alpha1.ConversationSpec{TTLAfterStopped: hours(2)},
			field: "spec.ttlAfterStopped"},
		"a TTL of zero": {spec: v1alpha1.ConversationSpec{TTLAfterStopped: hours(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			refused := class.NotAllowed(&v1alpha1.Conversation{Spec: c.spec}, &c.settings, c.agent)
			switch {
			case c.field == "" && refused != nil:
				t.Errorf("refused: %s", refused.Message)
			case c.field != "" && (refused == nil || !strings.HasPrefix(refused.Message, c.field+": SessionClass small allows")):
				t.Errorf("got %+v", refused)
			}
		})
	}
}

func TestRequestedLifetimesOverrideTheDefaultsOfTheClass(t *testing.T) {
	class := Class{Spec: v1alpha1.SessionClassSpec{
		Lifetimes: &v1alpha1.SessionLifetimes{MaxDuration: &v1alpha1.Lifetime{Default: &metav1.Duration{
			Duration: time.Hour}}},
		MaxRestarts: ptr.To[int32](2),
	}}
	if got := class.Bounds(); got.MaxDuration != time.Hour ||
		got.IdleTimeout != 30*time.Minute || got.StartDeadline != 10*time.Minute || got.MaxRestarts != 2 || got.TTL != nil {
		t.Errorf("got %+v", got)
	}
	requested := &v1alpha1.ConversationSpec{MaxDuration: &metav1.Duration{Duration: time.Minute},
		TTLAfterStopped: &metav1.Duration{}}
	if got := class.Bounds().For(requested); got.MaxDuration != time.Minute || got.TTL == nil || *got.TTL != 0 {
		t.Errorf("got %+v", got)
	}
	narrow := &v1alpha1.Lifetime{Max: &metav1.Duration{Duration: time.Minute}}
	bounded := Class{Spec: v1alpha1.SessionClassSpec{Lifetimes: &v1alpha1.SessionLifetimes{IdleTimeout: narrow,
		StartDeadline: narrow, MaxDuration: narrow, TTLAfterStopped: narrow}}}
	if got := bounded.Bounds(); got.IdleTimeout != time.Minute ||
		got.StartDeadline != time.Minute || got.MaxDuration != time.Minute || got.TTL != nil {
		t.Errorf("a default exceeds the maximum of the class: %+v", got)
	}
	unlimited := Class{Spec: v1alpha1.SessionClassSpec{Lifetimes: &v1alpha1.SessionLifetimes{
		MaxDuration: &v1alpha1.Lifetime{Default: &metav1.Duration{}, Max: narrow.Max}}}}
	if got := unlimited.Bounds(); got.MaxDuration != time.Minute {
		t.Errorf("the default 0s, which means no limit, exceeds the maximum of the class: %+v", got)
	}
	if got := (Class{}).Bounds(); got.MaxDuration != 24*time.Hour || got.MaxRestarts != 5 {
		t.Errorf("got %+v", got)
	}
}

func TestSettingsWithoutLimitsGetTheLimitsOfTheClass(t *testing.T) {
	class := Class{Spec: v1alpha1.SessionClassSpec{MaxIterations: ptr.To[int32](100), MaxBudgetPerTask: ptr.To("4.50")}}
	if got := class.WithDefaults(&v1alpha1.UserSettingsSpec{}); ptr.Deref(got.MaxIterations, 0) != 100 ||
		ptr.Deref(got.MaxBudgetPerTask, "") != "4.50" {
		t.Errorf("got %v iterations and a budget of %v", got.MaxIterations, got.MaxBudgetPerTask)
	}
	requested := &v1alpha1.UserSettingsSpec{MaxIterations: ptr.To[int32](7), MaxBudgetPerTask: ptr.To("1")}
	if got := class.WithDefaults(requested); *got.MaxIterations != 7 || *got.MaxBudgetPerTask != "1" {
		t.Errorf("got %d iterations and a budget of %s", *got.MaxIterations, *got.MaxBudgetPerTask)
	}
}

func TestAClassCanGiveAgentsTheGitTokenUnlessTheSettingsPreventIt(t *testing.T) {
	class := Class{Spec: v1alpha1.SessionClassSpec{ExposeGitTokenToAgent: ptr.To(true)}}
	for _, c := range []struct{ set, want *bool }{
		{nil, ptr.To(true)}, {ptr.To(true), ptr.To(true)}, {ptr.To(false), ptr.To(false)},
	} {
		got := class.WithDefaults(&v1alpha1.UserSettingsSpec{ExposeGitTokenToAgent: c.set}).ExposeGitTokenToAgent
		if !ptr.Equal(got, c.want) {
			t.Errorf("the settings have %v: got %v, want %v", c.set, got, c.want)
		}
	}
}

// A cached image may belong to another tenant. A pull checks the right to use the image.
func TestImagesChosenByUsersAreAlwaysPulledUnlessTheyHaveADigest(t *testing.T) {
	t.Parallel()
	class := Class{Spec: everyClassField()}
	for _, c := range []struct {
		userNamed bool
		image     string
		want      corev1.PullPolicy
	}{
		{true, "example.com/private:1", corev1.PullAlways},
		{true, "example.com/private@sha256:" + strings.Repeat("0", 64), corev1.PullNever},
		{false, "example.com/tools:1", corev1.PullNever},
	} {
		if got := class.pullPolicy(c.userNamed, c.image); got != c.want {
			t.Errorf("%s, named by a user: %t: %s, want %s", c.image, c.userNamed, got, c.want)
		}
	}
}
