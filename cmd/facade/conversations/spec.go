package conversations

import (
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/managed"
)

const (
	replayKey = "replay.json"
	imageKey  = "image"
)

// incompleteTTL is the ttlAfterStopped of a conversation until its Secrets and ConfigMaps are
// written. If a write fails, the client gets an error and will not delete the conversation.
const incompleteTTL = 10 * time.Minute

// build returns the Conversation for a request, and the keys to which the Conversation refers.
func build(u *auth.User, name string, r *rest.ConversationRequest, now time.Time) (*v1alpha1.Conversation,
	[]managed.Key) {
	tools, keys := managed.Tools(name, v1alpha1.ManagedSessionTool, r.MCPConfig, nil)
	c := &v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   u.Namespace,
			Name:        name,
			Labels:      map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
			Annotations: map[string]string{cluster.AnnotationCreatedAt: now.UTC().Format(time.RFC3339Nano)},
		},
		Spec: v1alpha1.ConversationSpec{
			UserSettingsName:         u.Name,
			Repository:               r.Repository,
			GitProvider:              (*v1alpha1.GitProvider)(r.GitProvider),
			SelectedBranch:           r.SelectedBranch,
			InitialUserMsg:           r.InitialUserMsg,
			ConversationInstructions: r.ConversationInstructions,
			Agent:                    r.Agent,
			LLMModel:                 r.LLMModel,
			MCPConfig:                tools,
			OneShot:                  ptr.Deref(r.OneShot, false),
		},
	}
	if u.Person != "" {
		c.Annotations[v1alpha1.AnnotationRequestedBy] = u.Person
	}
	if task := r.SuggestedTask; task != nil {
		c.Spec.SuggestedTask = &v1alpha1.SuggestedTask{
			GitProvider: v1alpha1.GitProvider(task.GitProvider),
			TaskType:    v1alpha1.TaskType(task.TaskType),
			Repo:        task.Repo,
			IssueNumber: task.IssueNumber,
			Title:       task.Title,
		}
	}
	if m := r.CreateMicroagent; m != nil {
		c.Spec.CreateMicroagent = &v1alpha1.CreateMicroagent{Repo: m.Repo,
			GitProvider: (*v1alpha1.GitProvider)(m.GitProvider), Title: m.Title}
	}
	random := rand.Text()
	if r.ReplayJSON != nil {
		c.Spec.ReplayJSONRef = &v1alpha1.ConfigMapKeyRef{Name: configMapName(name, v1alpha1.ManagedReplay, *r.ReplayJSON,
			random), Key: replayKey}
	}
	c.Spec.ImageURLs, c.Spec.Images = images(name, r.ImageURLs, random)
	if hasParts(c) {
		c.Annotations[v1alpha1.AnnotationIncomplete] = "true"
		c.Spec.TTLAfterStopped = &metav1.Duration{Duration: incompleteTTL}
	}
	return c, keys
}

// images returns the values of the fields imageURLs and images. If the request has a data URL, only
// the field images is set. Otherwise, only the field imageURLs is set. Equal images share a
// ConfigMap.
func images(conversation string, request []rest.Image, random string) (urls []string,
	list []v1alpha1.ConversationImage) {
	if !slices.ContainsFunc(request, func(i rest.Image) bool { return i.Data != nil }) {
		for _, image := range request {
			urls = append(urls, image.URL)
		}
		return urls, nil
	}
	for _, image := range request {
		entry := v1alpha1.ConversationImage{URL: &image.URL}
		if image.Data != nil {
			name := configMapName(conversation, v1alpha1.ManagedImage, string(image.Data), random)
			entry = v1alpha1.ConversationImage{ConfigMapKeyRef: &v1alpha1.ConfigMapKeyRef{Name: name, Key: imageKey},
				MediaType: &image.MediaType}
		}
		list = append(list, entry)
	}
	return nil, list
}

// hasParts reports whether the conversation refers to Secrets or ConfigMaps.
func hasParts(c *v1alpha1.Conversation) bool {
	return len(c.ConfigMapReferences()) > 0 || len(c.SecretReferences()) > 0
}

// configMapName contains a hash of the content, so that two ConfigMaps can be compared without
// reading them. The name also has a random part, because ConfigMaps of a deleted conversation with
// the same name may still exist.
func configMapName(conversation string, kind v1alpha1.ManagedKind, content, random string) string {
	return v1alpha1.ManagedName(conversation, kind, content) + "-" + strings.ToLower(random[:10])
}

func withoutRandomPart(ref v1alpha1.ConfigMapKeyRef) *v1alpha1.ConfigMapKeyRef {
	ref.Name = ref.Name[:max(0, strings.LastIndex(ref.Name, "-"))]
	return &ref
}

// sameRequest reports whether two conversations come from equal requests. It compares all fields
// except the values of API keys. To compare the keys, the Conversation would have to contain their
// hashes, and a short key can be guessed from its hash.
func sameRequest(stored, wanted *v1alpha1.Conversation) bool {
	one, other := requestedSpec(stored), requestedSpec(wanted)
	return len(one.Differences(&other)) == 0 && (stored.Spec.OneShot || !wanted.Spec.OneShot)
}

// requestedSpec returns the fields of a spec that a request can set, without lifecycle fields.
func requestedSpec(c *v1alpha1.Conversation) v1alpha1.ConversationSpec {
	spec := c.Spec.Immutable()
	spec.Workspace, spec.SessionClassName, spec.OneShot = nil, nil, false
	if ref := spec.ReplayJSONRef; ref != nil {
		spec.ReplayJSONRef = withoutRandomPart(*ref)
	}
	spec.Images = slices.Clone(spec.Images)
	for i := range spec.Images {
		if ref := spec.Images[i].ConfigMapKeyRef; ref != nil {
			spec.Images[i].ConfigMapKeyRef = withoutRandomPart(*ref)
		}
	}
	return spec
}

// hasOnlyID reports whether the request for this Conversation contains only an ID.
func hasOnlyID(c *v1alpha1.Conversation) bool {
	return equality.Semantic.DeepEqual(requestedSpec(c),
		v1alpha1.ConversationSpec{UserSettingsName: c.Spec.UserSettingsName})
}

// newID returns a random UUID without dashes, the ID format of OpenHands.
func newID() string { return strings.ReplaceAll(uuid.NewString(), "-", "") }
