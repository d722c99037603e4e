// Package workspace prepares a session's workspace. It clones the repository and configures git.
package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"

	"github.com/parley-dev/parley/api/session"
)

// clonePrefix is the prefix of incomplete clones. A complete clone is renamed.
const clonePrefix = ".parley-clone-"

// Options configure a workspace.
type Options struct {
	// Dir is the workspace. Home is the agent's home directory.
	Dir, Home string
	// Repository is the repository to clone. It may be nil.
	Repository *session.Repository
	// History makes the clone contain all branches with their history.
	History bool
	// Token is the token for the repository's provider. It may be empty.
	Token string
	// UserName and UserEmail are the author of commits.
	UserName, UserEmail string
	// ProxyURL is the URL of a proxy that adds the token. In git's configuration, it replaces the
	// beginning of all URLs of the repository's host. git sends ProxyHeader with each request to
	// ProxyURL. Both are empty if the session has no token for the host.
	ProxyURL, ProxyHeader string
	Log                   *slog.Logger
	// Patience bounds the time for the clone, including retries.
	Patience time.Duration
	// RetryDelay is the delay before the first retry. Zero means the default.
	RetryDelay time.Duration
}

// Workspace is a prepared directory.
type Workspace struct {
	// Dir is the agent's working directory. It is the clone, or the workspace if there is no clone.
	Dir string
	// Branch and Commit are checked out in the clone.
	Branch, Commit string
	// Resumed is set if the clone already existed.
	Resumed bool
}

// Prepare prepares the workspace. Its errors are for the user and name the repository.
func Prepare(ctx context.Context, o Options) (*Workspace, error) {
	if o.Repository == nil {
		return &Workspace{Dir: o.Dir}, configureGit(o, nil)
	}
	remote, err := Locate(o.Repository)
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", withoutUser(o.Repository.Name), err)
	}
	if remote.User == "" {
		o.Token = ""
	}
	workspace, err := o.clone(ctx, remote)
	if err != nil {
		return nil, fmt.Errorf("repository %s: %w", o.Repository.Name, err)
	}
	return workspace, configureGit(o, remote)
}

// withoutUser removes the user name and password from a URL, so that an error message does not
// contain them.
func withoutUser(name string) string {
	scheme, rest, isURL := strings.Cut(name, "://")
	if !isURL {
		return name
	}
	authority, path, _ := strings.Cut(rest, "/")
	return scheme + "://" + authority[strings.LastIndex(authority, "@")+1:] + "/" + path
}

func (o Options) clone(ctx context.Context, remote *Remote) (*Workspace, error) {
	if err := removeEntries(o.Dir, clonePrefix); err != nil {
		return nil, err
	}
	dir := filepath.Join(o.Dir, remote.Name)
	repository, err := git.PlainOpen(dir)
	resumed := err == nil
	if err != nil && !errors.Is(err, git.ErrRepositoryNotExists) {
		// The clone uses a git feature that go-git does not support, such as a sparse checkout. The
		// clone is the user's work, so it is kept.
		return &Workspace{Dir: dir, Resumed: true}, nil
	}
	if !resumed {
		if !emptyOrMissing(dir) {
			return nil, fmt.Errorf("the workspace already has a directory %s, which is not a clone: rename or remove it",
				remote.Name)
		}
		if repository, err = o.cloneAs(ctx, remote, dir); err != nil {
			return nil, err
		}
	}
	branch, commit := headOf(repository)
	return &Workspace{Dir: dir, Branch: branch, Commit: commit, Resumed: resumed}, nil
}

// headOf returns the branch and commit that are checked out. Both may be empty.
func headOf(repository *git.Repository) (branch, commit string) {
	head, err := repository.Head()
	if err != nil {
		return "", ""
	}
	if head.Name().IsBranch() {
		branch = head.Name().Short()
	}
	return branch, head.Hash().String()
}

// cloneAs clones into another directory and then renames it to dir. dir is therefore complete or
// missing, even after a kill.
func (o Options) cloneAs(ctx context.Context, remote *Remote, dir string) (*git.Repository, error) {
	temporary, err := os.MkdirTemp(o.Dir, clonePrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temporary)
	if err = o.fetch(ctx, remote, temporary); err == nil {
		err = CheckOut(ctx, temporary)
	}
	if err == nil {
		err = os.Chmod(temporary, 0o755)
	}
	if err == nil {
		err = os.Rename(temporary, dir)
	}
	if err != nil {
		return nil, err
	}
	return git.PlainOpen(dir)
}

func removeEntries(dir, prefix string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func emptyOrMissing(dir string) bool {
	entries, err := os.ReadDir(dir)
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
}
