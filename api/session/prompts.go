package session

import (
	"fmt"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// provider contains the words that prompts use for a git provider, and the name of the environment
// variable for its token.
type provider struct{ name, request, tokenVariable, checks string }

var providers = map[v1alpha1.GitProvider]provider{
	v1alpha1.GitHub:        {"GitHub", "pull request", "GITHUB_TOKEN", "GitHub Actions"},
	v1alpha1.GitLab:        {"GitLab", "merge request", "GITLAB_TOKEN", "GitLab CI"},
	v1alpha1.Bitbucket:     {"Bitbucket", "pull request", "BITBUCKET_TOKEN", "Bitbucket Pipelines"},
	v1alpha1.EnterpriseSSO: {"the git provider", "pull request", "GIT_TOKEN", "the CI checks"},
}

// TokenVariable returns the name of the environment variable from which tools read the token of
// this provider.
func TokenVariable(p v1alpha1.GitProvider) string { return providers[p].tokenVariable }

// FirstMessage returns the first message to the agent: the prompt of the task or microagent, then
// the user's own message.
func FirstMessage(spec *v1alpha1.ConversationSpec) string {
	message := ""
	switch {
	case spec.SuggestedTask != nil:
		message = taskPrompt(spec.SuggestedTask)
	case spec.CreateMicroagent != nil:
		message = microagentPrompt(spec.CreateMicroagent)
	}
	if spec.InitialUserMsg == nil {
		return message
	}
	if message != "" {
		message += "\n\n"
	}
	return message + *spec.InitialUserMsg
}

func taskPrompt(t *v1alpha1.SuggestedTask) string {
	p := providers[t.GitProvider]
	access := fmt.Sprintf("Use the tools read_git_host, comment and create_pull_request to read and write on %s.", p.name)
	switch t.TaskType {
	case v1alpha1.MergeConflicts:
		return fmt.Sprintf("The %s #%d of %s on %s, %q, conflicts with its base branch. Check out its branch, merge the "+
			"base branch into it, resolve every conflict so that the intent of both sides is kept, run the tests, commit "+
			"and push to the same branch. %s",
			p.request, t.IssueNumber, t.Repo, p.name, t.Title, access)
	case v1alpha1.FailingChecks:
		return fmt.Sprintf("Checks of the %s #%d of %s, %q, fail: see %s. Check out its branch, read the logs of the "+
			"failing checks, find the cause, fix it, reproduce the checks locally as far as possible, commit and push to the "+
			"same branch. %s",
			p.request, t.IssueNumber, t.Repo, t.Title, p.checks, access)
	case v1alpha1.UnresolvedComments:
		return fmt.Sprintf("The %s #%d of %s on %s, %q, has review comments that are not resolved. Check out its branch "+
			"and read each comment. Make the changes that the comments request. If a requested change is not right, answer "+
			"the comment instead. Run the tests, commit and push to the same branch. %s",
			p.request, t.IssueNumber, t.Repo, p.name, t.Title, access)
	default: // v1alpha1.OpenIssue
		return fmt.Sprintf("Work on issue #%d of %s on %s, %q. Read it and its discussion, find what has to change, make "+
			"the change on a new branch with tests, push the branch and open a %s that refers to the issue. %s",
			t.IssueNumber, t.Repo, p.name, t.Title, p.request, access)
	}
}

func microagentPrompt(m *v1alpha1.CreateMicroagent) string {
	about := ""
	if m.Title != nil {
		about = fmt.Sprintf(" about %q", *m.Title)
	}
	return fmt.Sprintf("Write a microagent%s for the repository %s: a short Markdown file under .openhands/microagents/ "+
		"that teaches an agent what it must know about this repository. Look at the code first, and write only what the "+
		"code confirms.", about, m.Repo)
}
