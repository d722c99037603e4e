package slimcache

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/lifecycletest"
)

func TestTheCacheKeepsImageReferencesAndDropsLongURLs(t *testing.T) {
	long := strings.Repeat("x", 16000)
	c := lifecycletest.MakeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Images = []v1alpha1.ConversationImage{lifecycletest.ImageIn("one", "image"), lifecycletest.ImageAt(long),
			lifecycletest.ImageAt("u"), lifecycletest.ImageIn("two", "image")}
	}).Conversation
	if _, err := Conversation(c); err != nil {
		t.Fatal(err)
	}
	if refs := c.ConfigMapReferences(); len(refs) != 2 || refs[0].Ref.Name != "one" || refs[1].Ref.Name != "two" ||
		len(c.Spec.Images) != 4 {
		t.Errorf("%d images with references %v", len(c.Spec.Images), refs)
	}
	if *c.Spec.Images[1].URL != "" || !Truncated(c) {
		t.Errorf("%d of %d bytes are kept, with annotations %v", len(*c.Spec.Images[1].URL), len(long), c.Annotations)
	}
	t.Run("short URLs stay", func(t *testing.T) {
		c := lifecycletest.MakeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
			s.Images = []v1alpha1.ConversationImage{lifecycletest.ImageIn("one", "image"), lifecycletest.ImageAt("u")}
		}).Conversation
		if _, err := Conversation(c); err != nil || *c.Spec.Images[1].URL != "u" || Truncated(c) {
			t.Errorf("a short URL is dropped: %v, %v", c.Spec.Images, err)
		}
	})
}

func TestLongListsAreCachedWithEmptyItems(t *testing.T) {
	long := strings.Repeat("x", MaxText)
	c := lifecycletest.MakeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
		s.ImageURLs = []string{long, "u"}
		s.MCPConfig = &v1alpha1.MCPConfig{StdioServers: []v1alpha1.MCPStdioServer{{Name: "a", Args: []string{"-v"}},
			{Name: "b", Args: []string{long, "cut", "x"}}}}
	}).Conversation
	if _, err := Conversation(c); err != nil || !Truncated(c) || !lifecycle.HasWork(&c.Spec) {
		t.Errorf("truncated: %t, %v", Truncated(c), err)
	}
	servers := c.Spec.MCPConfig.StdioServers
	if !slices.Equal(c.Spec.ImageURLs, []string{"", ""}) || !slices.Equal(servers[1].Args, []string{"", "", ""}) ||
		!slices.Equal(servers[0].Args, []string{"-v"}) {
		t.Errorf("cached: %q, %q and %q", c.Spec.ImageURLs, servers[0].Args, servers[1].Args)
	}
}

func TestACachedPodGivesTheSameVerdict(t *testing.T) {
	c := lifecycletest.MakeConversation("default", "c")
	pod := lifecycletest.PodOf(c).Ready()
	pod.Status.Reason, pod.Status.Message = "Evicted", "The node was low on resource: memory. "
	pod.Annotations = map[string]string{"note": "x"}
	pod.Spec.Containers[0].Args = []string{"much"}
	pod.Status.ContainerStatuses[0].ImageID = "much"
	pod.Labels["note"] = "x"
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodInitialized},
		corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "Evicted"})
	observe := func() lifecycle.Observation {
		return lifecycle.Observation{Conversation: c.Conversation, Pod: pod.Pod, SettingsExist: true, Now: time.Now()}
	}
	before := lifecycle.Judge(observe())
	if _, err := Pod(pod.Pod); err != nil {
		t.Fatal(err)
	}
	if after := lifecycle.Judge(observe()); !reflect.DeepEqual(after, before) {
		t.Errorf("the verdict for the cached pod is %+v, for the complete pod %+v", after, before)
	}
	if pod.Labels[v1alpha1.LabelConversation] != "c" || pod.Spec.Containers[0].Image != "example.com/base:1" ||
		!lifecycle.PodReady(pod.Pod) || lifecycle.SessionStatus(pod.Pod).State.Running == nil {
		t.Errorf("a field that the status needs is missing: %+v", pod)
	}
	if pod.Labels["note"] != "" || len(pod.Status.Conditions) > len(lifecycle.PodConditions) || pod.Annotations != nil ||
		pod.Spec.Containers[0].Args != nil || pod.Status.ContainerStatuses[0].ImageID != "" {
		t.Errorf("an unused field is cached: %+v", pod)
	}
}

func TestASessionsSecretKeepsItsOwner(t *testing.T) {
	owner := lifecycletest.MakeConversation("default", "c").Conversation
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "c-session", UID: "s-uid",
		Labels:      map[string]string{v1alpha1.LabelUserSettings: "ada", v1alpha1.LabelConversation: "c"},
		Annotations: map[string]string{"parley.dev/inputs": "x"}, OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("Conversation"))},
	}}
	if _, err := Secret(secret); err != nil || !metav1.IsControlledBy(secret, owner) || secret.UID != "s-uid" ||
		len(secret.Labels)+len(secret.Annotations) > 0 {
		t.Errorf("the cached Secret is %+v, %v", secret, err)
	}
	changed := secret.DeepCopy()
	changed.Annotations = map[string]string{"parley.dev/inputs": "x", v1alpha1.AnnotationModel: "r2"}
	if _, err := Secret(changed); err != nil || len(changed.Annotations) != 1 ||
		changed.Annotations[v1alpha1.AnnotationModel] != "r2" {
		t.Errorf("the cached Secret of a session with a changed model is %+v, %v", changed, err)
	}
	settings := secret.DeepCopy()
	settings.OwnerReferences, settings.Labels = nil, map[string]string{v1alpha1.LabelUserSettings: "ada"}
	if _, err := Secret(settings); err != nil || settings.Labels[v1alpha1.LabelUserSettings] != "ada" {
		t.Errorf("the cached Secret of a user is %+v, %v", settings, err)
	}
}
