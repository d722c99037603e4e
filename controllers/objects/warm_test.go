package objects

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const warmImage = "example.com/parley:1"

var warmKey = []byte("the secret of the manager")

func warmPodsOf(t *testing.T, name string, spec v1alpha1.SessionClassSpec, workspace v1alpha1.WorkspaceKind) *WarmPods {
	t.Helper()
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "class-uid"}, Spec: spec}
	pods, err := NewWarmPods("team-a", class, workspace, warmImage, warmKey)
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

func TestAWarmPodFitsSessionsThatNeedAnEqualPod(t *testing.T) {
	plain := func() aConversation { return makeConversation("team-a", "c1") }
	with := func(change func(*v1alpha1.ConversationSpec)) aConversation { return plain().With(change) }
	repository := with(func(s *v1alpha1.ConversationSpec) { s.Repository = ptr.To("acme/site") })
	factor := func(n int32) v1alpha1.UserSettingsSpec {
		return v1alpha1.UserSettingsSpec{RemoteRuntimeResourceFactor: &n}
	}
	image := func(name string) v1alpha1.UserSettingsSpec {
		return v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: &name}
	}
	for name, c := range map[string]struct {
		conversation aConversation
		settings     v1alpha1.UserSettingsSpec
		agent        *session.Agent
		workspace    v1alpha1.WorkspaceKind
		class        v1alpha1.SessionClassSpec
		fits         bool
	}{
		"plain":             {conversation: plain(), fits: true},
		"factor 1":          {conversation: plain(), settings: factor(1), fits: true},
		"a later start":     {conversation: plain().Ran(0).Attempt(2, 2), fits: true},
		"a class":           {conversation: plain(), class: everyClassField(), fits: true},
		"an agent":          {conversation: plain(), agent: &session.Agent{Name: "coder"}, fits: true},
		"a repository":      {conversation: repository, fits: true},
		"factor 2":          {conversation: plain(), settings: factor(2)},
		"an image":          {conversation: plain(), settings: image("own")},
		"the class's image": {conversation: plain(), settings: image(warmImage)}, // always pulled
		"an agent's image":  {conversation: plain(), agent: &session.Agent{Name: "coder", Image: "example.com/coder:4"}},
		"a volume":          {conversation: plain(), workspace: v1alpha1.WorkspaceOwn},
		"a runtime image": {conversation: plain(),
			settings: v1alpha1.UserSettingsSpec{SandboxRuntimeContainerImage: ptr.To("own")}},
		"a replay": {conversation: with(func(s *v1alpha1.ConversationSpec) {
			s.ReplayJSONRef = &v1alpha1.ConfigMapKeyRef{Name: "recorded", Key: "events.json"}
		})},
		"an image in a ConfigMap": {conversation: with(func(s *v1alpha1.ConversationSpec) {
			s.Images = []v1alpha1.ConversationImage{imageIn("screens", "login.png")}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			start := startOf(c.conversation.Conversation, c.settings)
			start.Class.Spec, start.Agent = c.class, c.agent
			if c.workspace != "" {
				start.Workspace = c.workspace
			}
			hash, err := TemplateHash(Pod(c.conversation.Conversation, start, warmImage), warmKey)
			if err != nil {
				t.Fatal(err)
			}
			warm := warmPodsOf(t, v1alpha1.DefaultSessionClass, c.class, v1alpha1.WorkspaceScratch)
			if (hash == warm.Hash) != c.fits {
				t.Errorf("fits: %t, want %t", hash == warm.Hash, c.fits)
			}
			if own, err := TemplateHash(warm.Pod(), warmKey); err != nil || c.fits && own == "" {
				t.Error(err)
			}
		})
	}
}

func TestARotationOfTheSnapshotSecretMakesWarmPodsOutdated(t *testing.T) {
	pod := warmPodsOf(t, "default", v1alpha1.SessionClassSpec{}, v1alpha1.WorkspaceScratch).Pod()
	before, err := TemplateHash(pod, warmKey)
	if err != nil {
		t.Fatal(err)
	}
	if same, _ := TemplateHash(pod, warmKey); same != before {
		t.Error("the hash of the same template changes")
	}
	if after, _ := TemplateHash(pod, session.NewSnapshotSecret()); after == before {
		t.Error("the hash is the same after a rotation")
	}
}

func TestAWarmPodGetsNoVariablesOrSecretsOfASession(t *testing.T) {
	warm := warmPodsOf(t, strings.Repeat("c", 53), v1alpha1.SessionClassSpec{
		Workspace: &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: "1Gi"}},
		Network:   &v1alpha1.SessionNetwork{HTTPProxy: "http://proxy:3128"},
	}, v1alpha1.WorkspaceClass)
	pod := warm.Pod()
	if problems := validation.IsDNS1123Label(pod.Name); len(problems) > 0 || pod.Spec.Hostname != pod.Name ||
		warm.Pod().Name == pod.Name {
		t.Errorf("the pod is named %s: %v", pod.Name, problems)
	}
	if owner := pod.OwnerReferences[0]; owner.Kind != "SessionClass" || owner.UID != "class-uid" ||
		owner.BlockOwnerDeletion != nil {
		t.Errorf("the owner is %+v", owner)
	}
	main := pod.Spec.Containers[0]
	var variables []string
	for _, variable := range main.Env {
		variables = append(variables, variable.Name)
	}
	if want := []string{"HTTP_PROXY", "http_proxy", "PARLEY_SECRET_BIND_KEY"}; !slices.Equal(variables, want) {
		t.Errorf("the variables are %v, want %v", variables, want)
	}
	if want := []string{supervisorProgram, "HTTP_PROXY", "http_proxy"}; !slices.Equal(main.Command, want) {
		t.Errorf("the command is %v, want %v", main.Command, want)
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Secret != nil || volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName != pod.Name {
			t.Errorf("the pod has the volume %+v", volume)
		}
	}
	volume, err := warm.Volume(pod)
	if err != nil || volume.Name != pod.Name || volume.OwnerReferences[0].Kind != "Pod" {
		t.Errorf("the volume is %+v: %v", volume, err)
	}
}

func TestTheKeyOfAWarmPodIsRefusedForAnotherPod(t *testing.T) {
	manager, other := session.NewSnapshotSecret(), session.NewSnapshotSecret()
	warm := warmPodsOf(t, "default", v1alpha1.SessionClassSpec{}, v1alpha1.WorkspaceScratch)
	pod := warm.Pod()
	pod.UID = "pod-uid"
	secret, err := warm.Secret(pod, manager)
	if err != nil {
		t.Fatal(err)
	}
	forged := secret.DeepCopy()
	forged.Data[session.BindKeyFile] = []byte("AAAA")
	another := secret.DeepCopy()
	another.Type = corev1.SecretTypeOpaque
	if len(BindKey(secret, pod, manager)) != session.BindKeySize {
		t.Error("the key is not accepted")
	}
	if BindKey(secret, pod, other) != nil || BindKey(forged, pod, manager) != nil ||
		BindKey(another, pod, manager) != nil {
		t.Error("a foreign key is accepted")
	}
	for name, change := range map[string]func(*corev1.Pod){
		"UID":      func(p *corev1.Pod) { p.UID = "other-uid" },
		"class":    func(p *corev1.Pod) { p.Labels[v1alpha1.LabelSessionClass] = "privileged" },
		"template": func(p *corev1.Pod) { p.Labels[v1alpha1.LabelWarm] = "other" },
	} {
		changed := pod.DeepCopy()
		if change(changed); BindKey(secret, changed, manager) != nil {
			t.Errorf("the key is accepted for a pod with another %s", name)
		}
	}
}

func TestASecretWithAForgedClaimToAWarmPodIsNotAuthentic(t *testing.T) {
	key := session.NewSnapshotSecret()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	if err := AddClaim(secret, "uid", Claim{"warm-a", "a"}, key); err != nil || !Authentic(secret, "uid", key) {
		t.Fatalf("not authentic: %v", err)
	}
	if claim := ClaimIn(secret.Annotations); claim == nil || *claim != (Claim{"warm-a", "a"}) {
		t.Errorf("the claim is %+v", claim)
	}
	for _, forged := range []string{"warm-b/b", ""} {
		changed := secret.DeepCopy()
		if changed.Annotations[v1alpha1.AnnotationPod] = forged; Authentic(changed, "uid", key) {
			t.Errorf("the claim %q is accepted", forged)
		}
	}
	if err := RemoveClaim(secret, "uid", key); err != nil || ClaimIn(secret.Annotations) != nil ||
		!Authentic(secret, "uid", key) {
		t.Errorf("the claim is not removed: %v", err)
	}
}
