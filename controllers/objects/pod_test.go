package objects

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

var update = flag.Bool("update", false, "overwrite the golden files")

func TestPodsMatchTheGoldenFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		conversation aConversation
		settings     v1alpha1.UserSettingsSpec
		agent        *session.Agent
		class        v1alpha1.SessionClassSpec
	}{
		"plain": {conversation: makeConversation("team-a", "c1")},
		"base-image-factor-4-workspace-replay": {
			conversation: makeConversation("team-a", "c1").With(func(s *v1alpha1.ConversationSpec) {
				s.Workspace = &v1alpha1.Workspace{Size: "10Gi"}
				s.ReplayJSONRef = &v1alpha1.ConfigMapKeyRef{Name: "recorded", Key: "events.json"}
			}),
			settings: v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: ptr.To("example.com/base:2"),
				RemoteRuntimeResourceFactor: ptr.To[int32](4)},
		},
		"images": {
			conversation: makeConversation("team-a", "c1").With(func(s *v1alpha1.ConversationSpec) {
				s.Images = []v1alpha1.ConversationImage{imageIn("c1-image-1", "image"), imageAt("https://example.com/a.png"),
					imageIn("screens", "login.png")}
			}),
		},
		"agent-image": {
			conversation: makeConversation("team-a", "c1"),
			agent:        &session.Agent{Name: "coder", Image: "example.com/coder:4"},
		},
		"mounted-runtime": {
			conversation: makeConversation("team-a", "c1"),
			class: v1alpha1.SessionClassSpec{Images: &v1alpha1.SessionImages{Default: ptr.To("example.com/base:2"),
				Runtime: v1alpha1.RuntimeMount}},
		},
		"class":         {conversation: makeConversation("team-a", "c1"), class: everyClassField()},
		"later-attempt": {conversation: makeConversation("team-a", "c1").Ran(0).Attempt(2, 2)},
		"runtime-image": {
			conversation: makeConversation("team-a", "c1"),
			settings: v1alpha1.UserSettingsSpec{
				SandboxBaseContainerImage: ptr.To("example.com/base:2"), SandboxRuntimeContainerImage: ptr.To("example.com/own:3"),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			start := startOf(tc.conversation.Conversation, tc.settings)
			start.Agent, start.Class.Spec = tc.agent, tc.class
			golden(t, "pod-"+name, Pod(tc.conversation.Conversation, start, "example.com/parley:1"))
		})
	}
}

func TestAPodHasTheDigestOfItsSessionDocument(t *testing.T) {
	c := makeConversation("team-a", "c1").Conversation
	start := startOf(c, v1alpha1.UserSettingsSpec{})
	want := corev1.EnvVar{Name: session.DocumentDigestVariable,
		Value: session.DocumentDigest(start.Secret.Data[session.DocumentFile])}
	main := Pod(c, start, "example.com/parley:1").Spec.Containers[0]
	if !slices.Contains(main.Env, want) || !slices.Contains(main.Command, want.Name) {
		t.Errorf("the container has the variables %v and the command %v", main.Env, main.Command)
	}
}

func TestTheDiskOfASessionIsLimited(t *testing.T) {
	disk := func(amount string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(amount)}
	}
	base := v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: ptr.To("example.com/base:2")}
	onVolume := func(s *v1alpha1.ConversationSpec) { s.Workspace = &v1alpha1.Workspace{Size: "10Gi"} }
	onScratch := func(*v1alpha1.ConversationSpec) {}
	for name, tc := range map[string]struct {
		change         func(*v1alpha1.ConversationSpec)
		settings       v1alpha1.UserSettingsSpec
		resources      v1alpha1.SessionResources
		request, limit string
		readOnly       bool
	}{
		"Parley's image": {onScratch, v1alpha1.UserSettingsSpec{}, v1alpha1.SessionResources{}, "512Mi", "30Gi", true},
		"scratch space":  {onScratch, base, v1alpha1.SessionResources{}, "512Mi", "20736Mi", false},
		"small scratch space": {onScratch, base, v1alpha1.SessionResources{ScratchSize: ptr.To(resource.MustParse("1Gi"))},
			"512Mi", "11520Mi", false},
		"a volume": {onVolume, base, v1alpha1.SessionResources{}, "512Mi", "10496Mi", false},
		"an image with its own entry point": {onVolume,
			v1alpha1.UserSettingsSpec{SandboxRuntimeContainerImage: ptr.To("example.com/own:3")}, v1alpha1.SessionResources{},
			"512Mi", "20Gi", false},
		"a limit of the class": {onScratch, base, v1alpha1.SessionResources{Limits: disk("1Gi")}, "512Mi", "1Gi", false},
		"a small limit of the class": {onScratch, base, v1alpha1.SessionResources{Limits: disk("100Mi")}, "100Mi", "100Mi",
			false},
		"a large request of the class": {onVolume, base, v1alpha1.SessionResources{Requests: disk("40Gi")}, "40Gi", "40Gi",
			false},
		"a factor": {onVolume, v1alpha1.UserSettingsSpec{SandboxBaseContainerImage: ptr.To("example.com/base:2"),
			RemoteRuntimeResourceFactor: ptr.To[int32](4)}, v1alpha1.SessionResources{Requests: disk("1Gi"),
			Limits: disk("2Gi")}, "4Gi", "8Gi", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := makeConversation("team-a", "c1").With(tc.change).Conversation
			start := startOf(c, tc.settings)
			start.Class.Spec.Resources = &tc.resources
			pod := Pod(c, start, "example.com/parley:1")
			main := pod.Spec.Containers[0]
			if got := main.Resources.Requests.StorageEphemeral(); !got.Equal(resource.MustParse(tc.request)) {
				t.Errorf("the request is %s, want %s", got, tc.request)
			}
			if got := main.Resources.Limits.StorageEphemeral(); !got.Equal(resource.MustParse(tc.limit)) {
				t.Errorf("the limit is %s, want %s", got, tc.limit)
			}
			if got := ptr.Deref(main.SecurityContext.ReadOnlyRootFilesystem, false); got != tc.readOnly {
				t.Errorf("the root is read-only: %t", got)
			}
		})
	}
}

func TestTheServiceAndTheNetworkPolicyMatchTheGoldenFiles(t *testing.T) {
	golden(t, "service", Service("team-a"))
	golden(t, "networkpolicy", NetworkPolicy("team-a", classAllowing("lab", "10.30.0.0/16"), "parley-system",
		[]string{"10.20.0.0/16"}))
}

func TestTheWorkspaceHasTheRequestedSizeAndStorageClass(t *testing.T) {
	c := makeConversation("team-a", "c1").With(func(s *v1alpha1.ConversationSpec) {
		s.Workspace = &v1alpha1.Workspace{Size: "10Gi", StorageClassName: ptr.To("fast")}
	})
	claim, err := WorkspaceClaim(c.Conversation, c.Spec.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "workspace", claim)
}

func golden(t *testing.T, name string, object any) {
	t.Helper()
	got, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name+".yaml")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; to accept it, run go test ./controllers/objects -update and read the diff.\ngot:\n%s",
			path, got)
	}
}
