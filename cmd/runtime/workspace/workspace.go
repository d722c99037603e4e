// Package workspace prepares the directory that a session works in: the clone of its repository,
// and what git needs to work with it.
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

// unfinished starts the names of clones that are not complete. A clone gets its own name only when
// it is.
const unfinished = ".parley-clone-"

// Options of a workspace.
type Options struct {
	// Dir is the workspace, Home the home directory of its user.
	Dir, Home string
	// Repository to clone into it; nil where there is none.
	Repository *session.Repository
	// History is cloned too, and all branches.
	History bool
	// Token of the repository's provider; empty where there is none.
	Token string
	// UserName and UserEmail are the author of commits.
	UserName, UserEmail string
	// Helper is the program that git asks for the token.
	Helper string
	Log    *slog.Logger
	// Patience is how long a host that cannot be reached is tried.
	Patience time.Duration
	// RetryDelay is how long to wait before a host is tried again that cannot be reached, where it
	// is not the usual.
	RetryDelay time.Duration
}

// Workspace is a prepared directory.
type Workspace struct {
	// Dir is where to work: the clone, or the workspace where there is none.
	Dir string
	// Branch and Commit that are checked out in the clone.
	Branch, Commit string
	// Resumed is set where the clone was there already.
	Resumed bool
}

// Prepare the workspace. Its errors are for the user: they say what about the repository is missing
// or wrong.
func Prepare(ctx context.Context, o Options) (*Workspace, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the workspace: %w", err)
	}
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

// withoutUser is the name of a repository to say in public: a URL that should hold no password may
// do so all the same.
func withoutUser(name string) string {
	scheme, rest, isURL := strings.Cut(name, "://")
	if !isURL {
		return name
	}
	authority, path, _ := strings.Cut(rest, "/")
	return scheme + "://" + authority[strings.LastIndex(authority, "@")+1:] + "/" + path
}

func (o Options) clone(ctx context.Context, remote *Remote) (*Workspace, error) {
	if err := removeEntries(o.Dir, unfinished); err != nil {
		return nil, err
	}
	dir := filepath.Join(o.Dir, remote.Name)
	repository, err := git.PlainOpen(dir)
	resumed := err == nil
	if err != nil && !errors.Is(err, git.ErrRepositoryNotExists) {
		// A clone in which git has since turned on what go-git does not know, such as a sparse
		// checkout. It is the user's work.
		return &Workspace{Dir: dir, Resumed: true}, nil
	}
	if !resumed {
		if !emptyOrMissing(dir) {
			return nil, fmt.Errorf("the workspace has a directory %s already, which is no clone", remote.Name)
		}
		if repository, err = o.cloneAs(ctx, remote, dir); err != nil {
			return nil, err
		}
	}
	branch, commit := headOf(repository)
	return &Workspace{Dir: dir, Branch: branch, Commit: commit, Resumed: resumed}, nil
}

// headOf a repository: the branch and commit that are checked out, where there are any.
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

// cloneAs clones beside dir and then renames, so that dir is a complete clone or nothing.
func (o Options) cloneAs(ctx context.Context, remote *Remote, dir string) (*git.Repository, error) {
	temporary, err := os.MkdirTemp(o.Dir, unfinished)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temporary)
	if err = o.fetch(ctx, remote, temporary); err == nil {
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

// removeEntries of a directory whose names begin with a prefix.
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
