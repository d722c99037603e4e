package workspace

import (
	"context"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// Changes are what became of a repository.
type Changes struct {
	// Branch and Commit that are checked out.
	Branch, Commit string
	// Files that differ from the commit that the session began with, those that are not committed included.
	Files int
}

// Compare a repository with the commit that the session began with. What cannot be told is left empty.
func Compare(ctx context.Context, dir, base string) Changes {
	var c Changes
	repository, err := git.PlainOpen(dir)
	if err != nil {
		return c
	}
	head, err := repository.Head()
	if err != nil {
		return c
	}
	c.Commit = head.Hash().String()
	if head.Name().IsBranch() {
		c.Branch = head.Name().Short()
	}
	changed := map[string]bool{}
	committed(ctx, repository, base, c.Commit, changed)
	if tree, err := repository.Worktree(); err == nil && ctx.Err() == nil {
		if status, err := tree.Status(); err == nil {
			for path, file := range status {
				if file.Staging != git.Unmodified || file.Worktree != git.Unmodified {
					changed[path] = true
				}
			}
		}
	}
	c.Files = len(changed)
	return c
}

func committed(ctx context.Context, repository *git.Repository, from, to string, changed map[string]bool) {
	if from == "" || from == to {
		return
	}
	before, err := treeOf(repository, from)
	if err != nil {
		return
	}
	after, err := treeOf(repository, to)
	if err != nil {
		return
	}
	changes, err := object.DiffTreeWithOptions(ctx, before, after, nil)
	if err != nil {
		return
	}
	for _, change := range changes {
		name := change.To.Name
		if name == "" {
			name = change.From.Name
		}
		changed[name] = true
	}
}

func treeOf(repository *git.Repository, commit string) (*object.Tree, error) {
	found, err := repository.CommitObject(plumbing.NewHash(commit))
	if err != nil {
		return nil, err
	}
	return found.Tree()
}
