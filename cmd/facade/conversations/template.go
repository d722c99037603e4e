package conversations

import (
	"context"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
)

// Template returns the request that would create a copy of a conversation. The cache has only the
// first line of a message, so Template reads from the API server.
func (s *Service) Template(ctx context.Context, u *auth.User, id string) (any, error) {
	c, err := own(ctx, u, id, s.Cluster.Conversation)
	if err != nil {
		return nil, err
	}
	return templateOf(&c.Spec), nil
}

func templateOf(spec *v1alpha1.ConversationSpec) *rest.ConversationTemplate {
	t := &rest.ConversationTemplate{
		Repository: spec.Repository, GitProvider: (*string)(spec.GitProvider), SelectedBranch: spec.SelectedBranch,
		InitialUserMsg: spec.InitialUserMsg, ConversationInstructions: spec.ConversationInstructions,
		Agent: spec.Agent, LLMModel: spec.LLMModel,
		ImageURLs: append([]string{}, spec.ImageURLs...), NotCopied: []string{},
	}
	attached := false
	for _, image := range spec.Images {
		if image.URL != nil {
			t.ImageURLs = append(t.ImageURLs, *image.URL)
		}
		attached = attached || image.ConfigMapKeyRef != nil
	}
	if task := spec.SuggestedTask; task != nil {
		t.SuggestedTask = &rest.SuggestedTask{GitProvider: string(task.GitProvider), TaskType: string(task.TaskType),
			Repo: task.Repo, IssueNumber: task.IssueNumber, Title: task.Title}
	}
	if m := spec.CreateMicroagent; m != nil {
		t.CreateMicroagent = &rest.CreateMicroagent{Repo: m.Repo, GitProvider: (*string)(m.GitProvider), Title: m.Title}
	}
	for _, part := range []struct {
		name   string
		exists bool
	}{
		{"attached images", attached}, {"events to replay", spec.ReplayJSONRef != nil},
		{"MCP servers", spec.MCPConfig != nil},
	} {
		if part.exists {
			t.NotCopied = append(t.NotCopied, part.name)
		}
	}
	return t
}
