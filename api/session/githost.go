package session

// Paths at which a session asks its git host for its user, with the token that it has.
const (
	GitUserPath         = "/git-host/user"
	GitRepositoriesPath = "/git-host/repositories"
	GitBranchesPath     = "/git-host/branches"
)

// GitUser is who the token is of. These names, as those below, are what clients of the existing
// service know.
type GitUser struct {
	ID        string  `json:"id"`
	Login     string  `json:"login"`
	AvatarURL string  `json:"avatar_url"`
	Company   *string `json:"company"`
	Name      *string `json:"name"`
	Email     *string `json:"email"`
}

// GitRepository that the user can reach.
type GitRepository struct {
	ID          string  `json:"id"`
	FullName    string  `json:"full_name"`
	GitProvider string  `json:"git_provider"`
	IsPublic    bool    `json:"is_public"`
	Stars       *int64  `json:"stargazers_count"`
	PushedAt    *string `json:"pushed_at"`
	MainBranch  *string `json:"main_branch"`
}

// GitBranch of a repository.
type GitBranch struct {
	Name         string  `json:"name"`
	CommitSHA    string  `json:"commit_sha"`
	Protected    bool    `json:"protected"`
	LastPushDate *string `json:"last_push_date"`
}
