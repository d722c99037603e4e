package rest

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// annotationCreatedAt is when a conversation was created, more precisely than the whole seconds of an object's own
	// time: a list is in this order.
	annotationCreatedAt = "parley.dev/created-at"
	// annotationIncomplete marks a conversation whose keys or replay are still being written.
	annotationIncomplete = "parley.dev/incomplete"
	// replayKey is where a replay stands in its ConfigMap.
	replayKey = "replay.json"
)

// incompleteLife is how long after its end an incomplete conversation stays. Nobody was told of it, so nobody will remove it.
const incompleteLife = 10 * time.Minute

// buildConversation is the object that a request asks for.
func buildConversation(u *user, name string, r *ConversationRequest, now time.Time) *v1alpha1.Conversation {
	c := &v1alpha1.Conversation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   u.namespace,
			Name:        name,
			Labels:      map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
			Annotations: map[string]string{annotationCreatedAt: now.UTC().Format(time.RFC3339Nano)},
		},
		Spec: v1alpha1.ConversationSpec{
			UserSettingsName:         u.name,
			Repository:               r.Repository,
			GitProvider:              (*v1alpha1.GitProvider)(r.GitProvider),
			SelectedBranch:           r.SelectedBranch,
			InitialUserMsg:           r.InitialUserMsg,
			ImageURLs:                r.ImageURLs,
			ConversationInstructions: r.ConversationInstructions,
			MCPConfig:                sessionMCPConfig(conversationKeys(name), r.MCPConfig),
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
		c.Annotations[annotationIncomplete] = "true"
		c.Spec.TTLAfterStopped = &metav1.Duration{Duration: incompleteLife}
	}
	return c
}

// hasParts says that the conversation needs more objects than itself.
func hasParts(c *v1alpha1.Conversation) bool {
	return c.Spec.ReplayJSONRef != nil || len(c.SecretReferences()) > 0
}

// replayName says what is in a replay, so that two can be compared without reading either. The random part keeps a
// conversation apart from a deleted one of the same name, whose replay may still be there for a while.
func replayName(conversation, replay, random string) string {
	return conversation + "-" + sessionReplay + digest(replay) + "-" + strings.ToLower(random[:10])
}

func withoutRandomPart(replay string) string {
	return replay[:max(0, strings.LastIndex(replay, "-"))]
}

func sessionMCPConfig(keys keyring, config *MCPConfig) *v1alpha1.MCPConfig {
	if config == nil {
		return nil
	}
	spec := &v1alpha1.MCPConfig{
		SSEServers:   sessionRemoteServers(keys, sse, config.SSEServers),
		SHTTPServers: sessionRemoteServers(keys, shttp, config.SHTTPServers),
	}
	for _, server := range config.StdioServers {
		entry := v1alpha1.MCPStdioServer{Name: server.Name, Command: server.Command, Args: server.Args}
		for _, variable := range server.Env {
			switch {
			case variable.Value.isSet():
				entry.Env = append(entry.Env, v1alpha1.MCPEnvVar{Name: variable.Name, SecretRef: sessionKeyRef(keys.toolVariable(server.Name, variable.Name))})
			case variable.Value.isCleared():
				entry.Env = append(entry.Env, v1alpha1.MCPEnvVar{Name: variable.Name, Value: ptr.To("")})
			}
		}
		spec.StdioServers = append(spec.StdioServers, entry)
	}
	return spec
}

func sessionRemoteServers(keys keyring, kind string, servers []MCPRemoteServer) []v1alpha1.MCPRemoteServer {
	var list []v1alpha1.MCPRemoteServer
	for _, server := range servers {
		entry := v1alpha1.MCPRemoteServer{URL: server.URL}
		if server.APIKey.isSet() {
			entry.APIKeyRef = sessionKeyRef(keys.remoteTool(kind, server.URL))
		}
		list = append(list, entry)
	}
	return list
}

func sessionKeyRef(secret string) *v1alpha1.SecretKeyRef {
	return &v1alpha1.SecretKeyRef{Name: secret, Key: keySecretKey}
}

// sameRequest says that two conversations were asked to do the same. Values of keys are not compared, only which there
// are: what could be compared would have to stand in the object, and a hash of a short key is as good as the key.
func sameRequest(stored, wanted *v1alpha1.Conversation) bool {
	return equality.Semantic.DeepEqual(asked(stored), asked(wanted))
}

// asked is what a request says of a conversation: not its lifecycle, and nothing that requests cannot say.
func asked(c *v1alpha1.Conversation) v1alpha1.ConversationSpec {
	spec := c.DeepCopy().Spec
	spec.Workspace, spec.Suspend, spec.RestartAt = nil, false, nil
	spec.IdleTimeout, spec.StartDeadline, spec.TTLAfterStopped = nil, nil, nil
	if spec.ReplayJSONRef != nil {
		spec.ReplayJSONRef.Name = withoutRandomPart(spec.ReplayJSONRef.Name)
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
