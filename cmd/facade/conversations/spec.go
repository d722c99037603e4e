package conversations

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/access"
	"github.com/parley-dev/parley/cmd/facade/kept"
)

const (
	// annotationCreatedAt is when a conversation was created, more precisely than the whole seconds of an object's own
	// time: a list is in this order.
	annotationCreatedAt = "parley.dev/created-at"
	// AnnotationIncomplete marks a conversation whose keys or replay are still being written.
	AnnotationIncomplete = "parley.dev/incomplete"
	// replayKey is where a replay stands in its ConfigMap.
	replayKey = "replay.json"
)

// incompleteLife is how long after its end an incomplete conversation stays. Nobody was told of it, so nobody will remove it.
const incompleteLife = 10 * time.Minute

// build the object that a request asks for, and the keys that it refers to.
func build(u *access.User, name string, r *rest.ConversationRequest, now time.Time) (*v1alpha1.Conversation, []kept.Key) {
	tools, keys := kept.Tools(name, v1alpha1.KeptSessionTool, r.MCPConfig, nil)
	c := &v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   u.Namespace,
			Name:        name,
			Labels:      map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
			Annotations: map[string]string{annotationCreatedAt: now.UTC().Format(time.RFC3339Nano)},
		},
		Spec: v1alpha1.ConversationSpec{
			UserSettingsName:         u.Name,
			Repository:               r.Repository,
			GitProvider:              (*v1alpha1.GitProvider)(r.GitProvider),
			SelectedBranch:           r.SelectedBranch,
			InitialUserMsg:           r.InitialUserMsg,
			ImageURLs:                r.ImageURLs,
			ConversationInstructions: r.ConversationInstructions,
			MCPConfig:                tools,
		},
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
		c.Spec.CreateMicroagent = &v1alpha1.CreateMicroagent{Repo: m.Repo, GitProvider: (*v1alpha1.GitProvider)(m.GitProvider), Title: m.Title}
	}
	if r.ReplayJSON != nil {
		c.Spec.ReplayJSONRef = &v1alpha1.ConfigMapKeyRef{Name: replayName(name, *r.ReplayJSON, rand.Text()), Key: replayKey}
	}
	if hasParts(c) {
		c.Annotations[AnnotationIncomplete] = "true"
		c.Spec.TTLAfterStopped = &metav1.Duration{Duration: incompleteLife}
	}
	return c, keys
}

// hasParts says that the conversation needs more objects than itself.
func hasParts(c *v1alpha1.Conversation) bool {
	return c.Spec.ReplayJSONRef != nil || len(c.SecretReferences()) > 0
}

// replayName says what is in a replay, so that two can be compared without reading either. The random part keeps a
// conversation apart from a deleted one of the same name, whose replay may still be there for a while.
func replayName(conversation, replay, random string) string {
	return v1alpha1.KeptName(conversation, v1alpha1.KeptReplay, replay) + "-" + strings.ToLower(random[:10])
}

func withoutRandomPart(replay string) string {
	return replay[:max(0, strings.LastIndex(replay, "-"))]
}

// sameRequest says that two conversations were asked to do the same. Values of keys are not compared, only which there
// are: what could be compared would have to stand in the object, and a hash of a short key is as good as the key.
func sameRequest(stored, wanted *v1alpha1.Conversation) bool {
	return equality.Semantic.DeepEqual(asked(stored), asked(wanted))
}

// asked is what a request says of a conversation: not its lifecycle, and nothing that requests cannot say.
func asked(c *v1alpha1.Conversation) v1alpha1.ConversationSpec {
	spec := c.Spec.Asked()
	spec.Workspace = nil
	if ref := spec.ReplayJSONRef; ref != nil {
		spec.ReplayJSONRef = &v1alpha1.ConfigMapKeyRef{Name: withoutRandomPart(ref.Name), Key: ref.Key}
	}
	return spec
}

// saysOnlyWhich says that a request names a conversation and asks for nothing.
func saysOnlyWhich(c *v1alpha1.Conversation) bool {
	return equality.Semantic.DeepEqual(asked(c), v1alpha1.ConversationSpec{UserSettingsName: c.Spec.UserSettingsName})
}

// newID is a random (version 4) UUID without its dashes.
func newID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return hex.EncodeToString(id[:])
}
