package session

// These paths query the session's git host with the session's git token.
const (
	GitUserPath         = "/git-host/user"
	GitRepositoriesPath = "/git-host/repositories"
	GitBranchesPath     = "/git-host/branches"
)

// Paths that publish the session's changes. A POST commits all changes and pushes them. A POST to
// PullRequestPath also opens a pull request.
const (
	PushPath        = "/git/push"
	PullRequestPath = "/git/pull-request"
)

// PublishRequest is the body of a POST to PushPath or PullRequestPath.
type PublishRequest struct {
	// Title is the message of the commit, and the title of the pull request.
	Title string `json:"title"`
	// Body is the description of the pull request.
	Body string `json:"body"`
	// Base is the target branch of the pull request. Empty means the branch from which the session
	// started.
	Base string `json:"base"`
}

// Published is the response to a POST to PushPath or PullRequestPath.
type Published struct {
	// Running is set if the work is not finished yet. Later, a notice in the session reports the
	// result.
	Running bool `json:"running"`
	// URL is the link of the pull request.
	URL string `json:"url"`
}

// GitUser is the owner of the token. OpenHands clients read the JSON fields of this type and of the
// types below.
type GitUser struct {
	ID        string  `json:"id"`
	Login     string  `json:"login"`
	AvatarURL string  `json:"avatar_url"`
	Company   *string `json:"company"`
	Name      *string `json:"name"`
	Email     *string `json:"email"`
}

// GitRepository is a repository that the user can access.
type GitRepository struct {
	ID          string  `json:"id"`
	FullName    string  `json:"full_name"`
	GitProvider string  `json:"git_provider"`
	IsPublic    bool    `json:"is_public"`
	Stars       *int64  `json:"stargazers_count"`
	PushedAt    *string `json:"pushed_at"`
	MainBranch  *string `json:"main_branch"`
}

// GitBranch is a branch of a repository.
type GitBranch struct {
	Name         string  `json:"name"`
	CommitSHA    string  `json:"commit_sha"`
	Protected    bool    `json:"protected"`
	LastPushDate *string `json:"last_push_date"`
}
