package slimcache

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
	"github.com/parley-dev/parley/hack/test/lifecycletest"
)

func cached[O any](t *testing.T, object O) O {
	t.Helper()
	slim, err := Transform(object)
	if err != nil {
		t.Fatal(err)
	}
	return slim.(O)
}

func TestTheCacheKeepsImageReferencesAndTruncatesLongURLs(t *testing.T) {
	long := strings.Repeat("x", 16000)
	c := cached(t, lifecycletest.MakeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
		s.Images = []v1alpha1.ConversationImage{lifecycletest.ImageIn("one", "image"), lifecycletest.ImageAt(long),
			lifecycletest.ImageAt("u"), lifecycletest.ImageIn("two", "image")}
	}).Conversation)
	if refs := c.ConfigMapReferences(); len(refs) != 2 || refs[0].Ref.Name != "one" || refs[1].Ref.Name != "two" ||
		len(c.Spec.Images) != 4 {
		t.Errorf("%d images with references %v", len(c.Spec.Images), refs)
	}
	if len(*c.Spec.Images[1].URL) > maxName || !Truncated(c) {
		t.Errorf("%d of %d bytes are kept, with annotations %v", len(*c.Spec.Images[1].URL), len(long), c.Annotations)
	}
}

func TestOrdinaryConversationsAreCachedWhole(t *testing.T) {
	c := lifecycletest.MakeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
		s.InitialUserMsg = ptr.To(strings.Repeat("x", MaxText))
		s.Images = []v1alpha1.ConversationImage{lifecycletest.ImageIn("one", "image"), lifecycletest.ImageAt("u")}
		s.MCPConfig = &v1alpha1.MCPConfig{StdioServers: []v1alpha1.MCPStdioServer{{Name: "a", Args: []string{"-v"},
			Env: []v1alpha1.MCPEnvVar{{Name: "A", Value: ptr.To("b")}}}}}
	}).Conversation
	before := c.Spec.DeepCopy()
	if cached(t, c); Truncated(c) || !reflect.DeepEqual(*before, c.Spec) {
		t.Errorf("the cached spec is %+v", c.Spec)
	}
}

func TestATruncatedConversationStillRefersToItsSecrets(t *testing.T) {
	env := func(secrets int) []v1alpha1.MCPEnvVar {
		vars := []v1alpha1.MCPEnvVar{{Name: "LONG", Value: ptr.To(strings.Repeat("x", 2*MaxText))}}
		for i := range secrets {
			vars = append(vars, v1alpha1.MCPEnvVar{SecretRef: &v1alpha1.SecretKeyRef{Name: fmt.Sprint("s", i), Key: "k"}})
		}
		return vars
	}
	for _, c := range []struct {
		secrets int
		want    []string
	}{{2, []string{"s0", "s1"}}, {maxConversationSecrets + 1, []string{AnySecret}}} {
		conversation := lifecycletest.MakeConversation("ns", "c").With(func(s *v1alpha1.ConversationSpec) {
			s.MCPConfig = &v1alpha1.MCPConfig{StdioServers: []v1alpha1.MCPStdioServer{{Name: "a", Env: env(c.secrets)}}}
		}).Conversation
		var names []string
		for _, ref := range cached(t, conversation).SecretReferences() {
			names = append(names, ref.Ref.Name)
		}
		if !slices.Equal(names, c.want) || !Truncated(conversation) {
			t.Errorf("%d Secrets are cached as %v", c.secrets, names)
		}
	}
}

func TestACachedPodGivesTheSameVerdictAsTheCompletePod(t *testing.T) {
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
	cached(t, pod.Pod)
	if after := lifecycle.Judge(observe()); !reflect.DeepEqual(after, before) {
		t.Errorf("the verdict for the cached pod is %+v, for the complete pod %+v", after, before)
	}
	if pod.Labels[v1alpha1.LabelConversation] != "c" ||
		!lifecycle.PodReady(pod.Pod) || lifecycle.SessionStatus(pod.Pod).State.Running == nil {
		t.Errorf("a field that the status needs is missing: %+v", pod)
	}
	if pod.Labels["note"] != "" || len(pod.Status.Conditions) > len(lifecycle.PodConditions) || pod.Annotations != nil ||
		pod.Spec.Containers != nil || pod.Status.ContainerStatuses[0].ImageID != "" {
		t.Errorf("an unused field is cached: %+v", pod)
	}
}

func TestTheStatusFromACachedPodNamesTheImageThatCannotBePulled(t *testing.T) {
	c := lifecycletest.MakeConversation("default", "c")
	pod := lifecycletest.PodOf(c).Scheduled().Waiting(lifecycle.SessionContainer, "ImagePullBackOff")
	pod.Spec.Containers[0].Args = []string{"much"}
	cached(t, pod.Pod)
	verdict := lifecycle.Judge(lifecycle.Observation{Conversation: c.Conversation, Pod: pod.Pod, SettingsExist: true,
		Now: time.Now()})
	if verdict.Message != "Image example.com/base:1: ImagePullBackOff" || pod.Spec.Containers[0].Args != nil {
		t.Errorf("the message is %q, and the cached container %+v", verdict.Message, pod.Spec.Containers)
	}
}

func TestTheCacheKeepsTheOwnerAndTheAttemptOfASessionsSecret(t *testing.T) {
	owner := lifecycletest.MakeConversation("default", "c").Conversation
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "c-session", UID: "s-uid",
		Labels:      map[string]string{v1alpha1.LabelUserSettings: "ada", v1alpha1.LabelAttempt: "2"},
		Annotations: map[string]string{"parley.dev/inputs": "x"}, OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(owner, v1alpha1.SchemeGroupVersion.WithKind("Conversation"))},
	}}
	if cached(t, secret); !metav1.IsControlledBy(secret, owner) || secret.UID != "s-uid" ||
		len(secret.Labels) != 1 || secret.Labels[v1alpha1.LabelAttempt] != "2" || len(secret.Annotations) > 0 {
		t.Errorf("the cached Secret is %+v", secret)
	}
	changed := secret.DeepCopy()
	changed.Annotations = map[string]string{"parley.dev/inputs": "x", v1alpha1.AnnotationModel: "r2"}
	if cached(t, changed); len(changed.Annotations) != 1 || changed.Annotations[v1alpha1.AnnotationModel] != "r2" {
		t.Errorf("the cached Secret of a session with a changed model is %+v", changed)
	}
	settings := secret.DeepCopy()
	settings.OwnerReferences, settings.Labels = nil, map[string]string{v1alpha1.LabelUserSettings: "ada"}
	if cached(t, settings); settings.Labels[v1alpha1.LabelUserSettings] != "ada" {
		t.Errorf("the cached Secret of a user is %+v", settings)
	}
}

func TestTheCacheKeepsTheFieldsThatWarmStartsNeed(t *testing.T) {
	c := lifecycletest.MakeConversation("ns", "c")
	pod := lifecycletest.PodOf(c).Warm("warm-default-x").Ready().Crashed(2, "OOMKilled").Pod
	pod.Spec.Volumes = []corev1.Volume{{Name: "tmp"}, {Name: lifecycle.WorkspaceVolume, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "warm-default-x"}}}}
	if slim := cached(t, pod); !lifecycle.IsWarm(slim) || lifecycle.WorkspaceClaim(slim) != "warm-default-x" ||
		lifecycle.PodRestarts(slim) != 2 || !metav1.IsControlledBy(slim, c.Conversation) || len(slim.Spec.Volumes) != 1 {
		t.Errorf("the cache holds %+v", slim)
	}
	secret := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{OwnerReferences: pod.OwnerReferences,
		Labels:      map[string]string{v1alpha1.LabelAttempt: "2", "other": "label"},
		Annotations: map[string]string{v1alpha1.AnnotationPod: "warm-default-x/uid", "other": "annotation"}}}
	if slim := cached(t, secret); len(slim.Labels) != 1 || slim.Labels[v1alpha1.LabelAttempt] != "2" ||
		len(slim.Annotations) != 1 || slim.Annotations[v1alpha1.AnnotationPod] != "warm-default-x/uid" {
		t.Errorf("the cache holds %+v", slim)
	}
	namespace := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"team": "web"},
			Annotations: map[string]string{"other": "annotation"}}}
	if slim := cached(t, namespace); slim.Labels["team"] != "web" || len(slim.Annotations) != 0 {
		t.Errorf("the cache holds %+v", slim)
	}
}
