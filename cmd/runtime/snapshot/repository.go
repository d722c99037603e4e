package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// If a session has at most ownCommits commits, a snapshot contains all of them, even pushed
	// commits, because their branch may be deleted from the remote.
	ownCommits = 100
	maxCommits = 20000
)

const (
	branchPrefix = "refs/heads/"
	originPrefix = "refs/remotes/origin/"
	stashRef     = "refs/stash"
)

// repositoryState is the state of a clone without its files.
type repositoryState struct {
	// Head is the name of the current branch, or a commit if no branch is checked out.
	Head string `json:"head"`
	// Refs maps local branches and the stash to their commits. Remotes maps remote-tracking
	// branches to their commits.
	Refs    map[string]string `json:"refs"`
	Remotes map[string]string `json:"remotes,omitempty"`
	// Needs are the commits that the snapshot builds on and that the remote has.
	Needs []string `json:"needs,omitempty"`
	// Base is the commit at which the session started.
	Base string `json:"base,omitempty"`
	// Deleted are files of the current commit that are missing in the clone.
	Deleted []string `json:"deleted,omitempty"`
}

// clone is an opened clone. It is read with go-git, because the agent may have configured the git
// program to run other programs.
type clone struct {
	repository *git.Repository
	state      repositoryState
	objects    []plumbing.Hash
	changed    []string
}

// errUnsupported says that go-git cannot read the repository. The snapshot then contains all files
// of the clone.
var errUnsupported = errors.New("the clone uses a git feature that is not supported")

// openRepository opens a clone. It streams large objects, because the agent may commit gigabytes.
func openRepository(dir string) (*git.Repository, error) {
	storage := filesystem.NewStorageWithOptions(gitDir(dir), cache.NewObjectLRUDefault(),
		filesystem.Options{LargeObjectThreshold: workspace.LargeObject})
	return workspace.OpenAnyNames(storage, dir)
}

func gitDir(dir string) billy.Filesystem { return osfs.New(filepath.Join(dir, git.GitDirName)) }

func openClone(ctx context.Context, dir, base string, root *os.Root) (*clone, error) {
	if info, err := os.Lstat(filepath.Join(dir, git.GitDirName)); err != nil || !info.IsDir() {
		return nil, errUnsupported
	}
	repository, err := openRepository(dir)
	if err != nil {
		return nil, errUnsupported
	}
	c := &clone{repository: repository, state: repositoryState{Refs: map[string]string{}, Remotes: map[string]string{},
		Base: base}}
	heads, err := c.readRefs()
	if err != nil {
		return nil, err
	}
	if err := c.findObjects(ctx, heads); err != nil {
		return nil, err
	}
	return c, c.findFiles(ctx, root)
}

// readRefs reads the references. It returns the commits of HEAD, the local branches and the stash.
func (c *clone) readRefs() (heads []plumbing.Hash, err error) {
	head, err := c.repository.Reference(plumbing.HEAD, false)
	if err != nil {
		return nil, fmt.Errorf("read HEAD: %w", err)
	}
	c.state.Head = string(head.Target())
	if head.Type() == plumbing.HashReference {
		c.state.Head = head.Hash().String()
		heads = append(heads, head.Hash())
	}
	refs, err := c.repository.References()
	if err != nil {
		return nil, fmt.Errorf("read the references: %w", err)
	}
	err = refs.ForEach(func(ref *plumbing.Reference) error {
		name := ref.Name().String()
		switch {
		case ref.Type() != plumbing.HashReference:
		case strings.HasPrefix(name, branchPrefix), name == stashRef:
			c.state.Refs[name] = ref.Hash().String()
			heads = append(heads, ref.Hash())
		case strings.HasPrefix(name, originPrefix), strings.HasPrefix(name, workspace.FetchedPrefix):
			c.state.Remotes[name] = ref.Hash().String()
		}
		return nil
	})
	return heads, err
}

// findObjects finds the objects of the session's own commits. If the session has more than
// ownCommits commits, findObjects leaves out commits that the remote has.
func (c *clone) findObjects(ctx context.Context, heads []plumbing.Hash) error {
	shallow, err := c.repository.Storer.Shallow()
	if err != nil {
		return fmt.Errorf("read the shallow commits: %w", err)
	}
	known := map[plumbing.Hash]bool{}
	for _, hash := range shallow {
		known[hash] = true
	}
	if c.state.Base != "" {
		known[plumbing.NewHash(c.state.Base)] = true
	}
	local, needs, err := c.walkHistory(ctx, heads, known, ownCommits)
	if errors.Is(err, ErrTooLarge) {
		if err := c.addRemote(ctx, known); err != nil {
			return err
		}
		local, needs, err = c.walkHistory(ctx, heads, known, maxCommits)
	}
	if err != nil {
		return err
	}
	for _, hash := range needs {
		c.state.Needs = append(c.state.Needs, hash.String())
	}
	slices.Sort(c.state.Needs)
	if len(local) == 0 {
		return nil
	}
	seen := map[plumbing.Hash]bool{}
	for _, hash := range needs {
		if err := c.addTree(ctx, hash, seen, nil); err != nil {
			return err
		}
	}
	add := func(hash plumbing.Hash) { c.objects = append(c.objects, hash) }
	for _, hash := range local {
		add(hash)
		if err := c.addTree(ctx, hash, seen, add); err != nil {
			return err
		}
	}
	return nil
}

// walkHistory follows the history from heads back to known commits. local contains the unknown
// commits. needs contains the known commits at which walkHistory stopped. If there are more than
// limit local commits, it returns ErrTooLarge.
func (c *clone) walkHistory(ctx context.Context, heads []plumbing.Hash, known map[plumbing.Hash]bool,
	limit int) (local, needs []plumbing.Hash, err error) {
	visited := map[plumbing.Hash]bool{}
	for next := slices.Clone(heads); len(next) > 0; {
		hash := next[len(next)-1]
		next = next[:len(next)-1]
		switch {
		case visited[hash]:
			continue
		case known[hash]:
			visited[hash] = true
			needs = append(needs, hash)
			continue
		case len(local) == limit:
			return nil, nil, ErrTooLarge
		}
		visited[hash] = true
		commit, err := object.GetCommit(c.repository.Storer, hash)
		if err != nil {
			return nil, nil, fmt.Errorf("read commit %s: %w", hash, err)
		}
		local = append(local, hash)
		next = append(next, commit.ParentHashes...)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
	}
	return local, needs, nil
}

// addRemote adds the commits of the remote's branches to the known commits.
func (c *clone) addRemote(ctx context.Context, known map[plumbing.Hash]bool) error {
	var next []plumbing.Hash
	for _, hash := range c.state.Remotes {
		next = append(next, plumbing.NewHash(hash))
	}
	visited := map[plumbing.Hash]bool{}
	for len(next) > 0 && len(visited) < maxCommits {
		hash := next[0]
		next = next[1:]
		if visited[hash] {
			continue
		}
		visited[hash] = true
		commit, err := object.GetCommit(c.repository.Storer, hash)
		switch {
		case errors.Is(err, plumbing.ErrObjectNotFound): // the clone is shallow
			continue
		case err != nil:
			return fmt.Errorf("read commit %s: %w", hash, err)
		}
		known[hash] = true
		next = append(next, commit.ParentHashes...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// addTree marks a commit's files and directories as seen. It calls add(), which may be nil, for
// those that were not seen before.
func (c *clone) addTree(ctx context.Context, of plumbing.Hash, seen map[plumbing.Hash]bool,
	add func(plumbing.Hash)) error {
	commit, err := object.GetCommit(c.repository.Storer, of)
	if err != nil {
		return fmt.Errorf("read commit %s: %w", of, err)
	}
	next := []plumbing.Hash{commit.TreeHash}
	for len(next) > 0 {
		hash := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[hash] {
			continue
		}
		seen[hash] = true
		if add != nil {
			add(hash)
		}
		tree, err := object.GetTree(c.repository.Storer, hash)
		if err != nil {
			return fmt.Errorf("read tree %s: %w", hash, err)
		}
		for _, entry := range tree.Entries {
			switch {
			case entry.Mode == filemode.Submodule:
			case entry.Mode == filemode.Dir:
				next = append(next, entry.Hash)
			case !seen[entry.Hash]:
				seen[entry.Hash] = true
				if add != nil {
					add(entry.Hash)
				}
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// findFiles finds changed, deleted and untracked files. It leaves out ignored files.
func (c *clone) findFiles(ctx context.Context, root *os.Root) error {
	tree, err := c.repository.Worktree()
	if err != nil {
		return errUnsupported // a bare repository has no files
	}
	status, err := tree.Status()
	if err != nil {
		return fmt.Errorf("compare the files: %w", err)
	}
	for name, file := range status {
		if file.Staging == git.Unmodified && file.Worktree == git.Unmodified {
			continue
		}
		info, err := lstat(root, name)
		// A file that became a directory also counts as deleted.
		if err != nil || info.IsDir() {
			c.state.Deleted = append(c.state.Deleted, name)
		} else {
			c.changed = append(c.changed, name)
		}
	}
	slices.Sort(c.state.Deleted)
	slices.Sort(c.changed)
	return ctx.Err()
}

// lstat describes a file of the clone. It returns an error if the path goes through a symbolic
// link.
func lstat(root *os.Root, name string) (fs.FileInfo, error) {
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if info, err := root.Lstat(parent); err != nil || !info.IsDir() {
			return nil, fs.ErrNotExist
		}
	}
	return root.Lstat(name)
}

func (c *clone) objectSize() (size int64, err error) {
	for _, hash := range c.objects {
		bytes, err := c.repository.Storer.EncodedObjectSize(hash)
		if err != nil {
			return 0, fmt.Errorf("read object %s: %w", hash, err)
		}
		size += bytes
	}
	return size, nil
}

// setRefs sets a fresh clone's references. It reports whether the clone then has another current
// commit.
func setRefs(repository *git.Repository, state *repositoryState) (moved bool, err error) {
	storage, before := repository.Storer, plumbing.ZeroHash
	if head, err := repository.Head(); err == nil {
		before = head.Hash()
	}
	refs, err := repository.References()
	if err != nil {
		return false, err
	}
	var stale []plumbing.ReferenceName
	err = refs.ForEach(func(ref *plumbing.Reference) error {
		if name := ref.Name(); name.IsBranch() && state.Refs[name.String()] == "" {
			stale = append(stale, name)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	for name, hash := range state.Refs {
		ref := plumbing.NewHashReference(plumbing.ReferenceName(name), plumbing.NewHash(hash))
		if !strings.HasPrefix(name, branchPrefix) && name != stashRef {
			return false, fmt.Errorf("%q is not a branch", name)
		}
		if err := storage.SetReference(ref); err != nil {
			return false, err
		}
	}
	if err := setRemotes(storage, state.Remotes); err != nil {
		return false, err
	}
	head := plumbing.NewSymbolicReference(plumbing.HEAD, plumbing.ReferenceName(state.Head))
	if !strings.HasPrefix(state.Head, branchPrefix) {
		head = plumbing.NewHashReference(plumbing.HEAD, plumbing.NewHash(state.Head))
	}
	if err := storage.SetReference(head); err != nil {
		return false, err
	}
	for _, name := range stale {
		if err := storage.RemoveReference(name); err != nil {
			return false, err
		}
	}
	current, err := repository.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return !before.IsZero(), nil // a branch without a commit
	}
	return err == nil && current.Hash() != before, err
}

// setRemotes sets the remote-tracking branches that a fresh clone lacks. It skips branches whose
// commit the clone does not have.
func setRemotes(storage interface {
	storer.ReferenceStorer
	storer.EncodedObjectStorer
}, remotes map[string]string) error {
	for name, text := range remotes {
		hash := plumbing.NewHash(text)
		known := strings.HasPrefix(name, originPrefix) || strings.HasPrefix(name, workspace.FetchedPrefix)
		if !known || storage.HasEncodedObject(hash) != nil {
			continue
		}
		if _, err := storage.Reference(plumbing.ReferenceName(name)); err == nil {
			continue
		}
		if err := storage.SetReference(plumbing.NewHashReference(plumbing.ReferenceName(name), hash)); err != nil {
			return err
		}
	}
	return nil
}
