package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// ErrNoRepository says that a directory is no git repository.
var ErrNoRepository = errors.New("not a git repository")

// maxCompared bounds a file whose contents are compared or shown.
const maxCompared = 1 << 20

// Kind of a change, as clients know it.
type Kind string

// The kinds of changes.
const (
	Modified  Kind = "M"
	Added     Kind = "A"
	Deleted   Kind = "D"
	Untracked Kind = "U"
)

// Change of a file since the commit that the session began with.
type Change struct {
	Kind Kind   `json:"status"`
	Path string `json:"path"`
}

// Changes are what became of a repository. It is read by code of our own: the agent may have
// configured git to run what it likes.
type Changes struct {
	// Branch and Commit that are checked out.
	Branch, Commit string
	// Files that differ from the commit that the session began with, those that are not committed
	// included, by their paths.
	Files []Change

	root *os.Root
	base *object.Tree // nil where there is nothing to compare with
	done func()
}

// Compare a repository with the commit that the session began with. The result must be closed. It
// returns when ctx is done, though what reads a large repository, or a pipe, goes on.
func Compare(ctx context.Context, dir, base string) (*Changes, error) {
	return CompareUntil(ctx, dir, base, func() {})
}

// CompareUntil is Compare, and calls done when nothing is read for it any more: when the result is
// closed, or else when what goes on after ctx has ended.
func CompareUntil(ctx context.Context, dir, base string, done func()) (*Changes, error) {
	type result struct {
		changes *Changes
		err     error
	}
	results := make(chan result, 1)
	go func() {
		changes, err := compare(ctx, dir, base)
		if err != nil {
			done()
		} else {
			changes.done = done
		}
		results <- result{changes, err}
	}()
	select {
	case r := <-results:
		return r.changes, r.err
	case <-ctx.Done():
		go func() {
			if r := <-results; r.err == nil {
				_ = r.changes.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func compare(ctx context.Context, dir, base string) (*Changes, error) {
	repository, err := git.PlainOpen(dir)
	if err != nil {
		return nil, ErrNoRepository
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	c := &Changes{root: root}
	c.Branch, c.Commit = headOf(repository)
	if base != "" {
		c.base, _ = treeOf(repository, base)
	}
	if err := c.find(ctx, repository); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return c, nil
}

// Close what was opened.
func (c *Changes) Close() error {
	defer c.done()
	return c.root.Close()
}

func (c *Changes) find(ctx context.Context, repository *git.Repository) error {
	touched := map[string]bool{} // by path: whether git does not know the file
	if err := c.committed(ctx, repository, touched); err != nil {
		return err
	}
	tree, err := repository.Worktree()
	if err != nil {
		return ErrNoRepository // a bare one has no files
	}
	status, err := tree.Status()
	if err != nil {
		return err
	}
	for name, file := range status {
		if file.Staging != git.Unmodified || file.Worktree != git.Unmodified {
			touched[name] = file.Worktree == git.Untracked
		}
	}
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		if name == RecordsDir || strings.HasPrefix(name, RecordsDir+"/") {
			continue
		}
		if kind := c.kind(name, touched[name]); kind != "" {
			c.Files = append(c.Files, Change{kind, name})
		}
	}
	return ctx.Err()
}

// committed finds what commits of the session changed.
func (c *Changes) committed(ctx context.Context, repository *git.Repository, touched map[string]bool) error {
	if c.base == nil || c.Commit == "" {
		return nil
	}
	after, err := treeOf(repository, c.Commit)
	if err != nil {
		return err
	}
	changes, err := object.DiffTreeWithOptions(ctx, c.base, after, nil)
	if err != nil {
		return err
	}
	for _, change := range changes {
		for _, name := range []string{change.From.Name, change.To.Name} {
			if name != "" {
				touched[name] = false
			}
		}
	}
	return nil
}

// kind of the change of a file; empty if it is as it was.
func (c *Changes) kind(name string, untracked bool) Kind {
	_, err := c.root.Lstat(name)
	there := err == nil
	before := c.original(name)
	switch {
	case before == nil && !there:
		return ""
	case before == nil && untracked:
		return Untracked
	case before == nil:
		return Added
	case !there:
		return Deleted
	}
	if old, now, err := c.Contents(name); err == nil && old == now {
		return ""
	}
	return Modified
}

func (c *Changes) original(name string) *object.File {
	if c.base == nil {
		return nil
	}
	file, _ := c.base.File(path.Clean(name)) // nil where there is none
	return file
}

// What cannot be shown.
var (
	ErrNoFile   = errors.New("it is no file")
	ErrBinary   = errors.New("the file is binary")
	ErrTooLarge = errors.New("the file is too large")
)

// Contents of a file before the session, and now; empty where it is not there.
func (c *Changes) Contents(name string) (before, now string, err error) {
	if file := c.original(name); file != nil {
		if file.Size > maxCompared {
			return "", "", ErrTooLarge
		}
		if before, err = file.Contents(); err != nil {
			return "", "", err
		}
	}
	now, err = c.current(name)
	if err == nil && IsBinary(before) {
		err = ErrBinary
	}
	return before, now, err
}

// current content of a file; of a link it is where that points to, as git has it.
func (c *Changes) current(name string) (string, error) {
	info, err := c.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err == nil && info.Mode()&fs.ModeSymlink != 0:
		return c.root.Readlink(name)
	case err != nil:
		return "", err
	}
	return ReadText(c.root, name)
}

// ReadText reads a file of text. Links are followed where they do not leave the root.
func ReadText(root *os.Root, name string) (string, error) {
	info, err := root.Stat(name)
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", ErrNoFile
	case info.Size() > maxCompared:
		return "", ErrTooLarge
	}
	file, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxCompared+1))
	switch {
	case err != nil:
		return "", err
	case len(text) > maxCompared: // it grew meanwhile, and a part of it may end within a secret
		return "", ErrTooLarge
	case IsBinary(string(text)):
		return "", ErrBinary
	}
	return string(text), nil
}

// IsBinary as git tells it: by a zero byte near the beginning.
func IsBinary(text string) bool { return strings.Contains(text[:min(len(text), 8000)], "\x00") }

func treeOf(repository *git.Repository, commit string) (*object.Tree, error) {
	found, err := repository.CommitObject(plumbing.NewHash(commit))
	if err != nil {
		return nil, err
	}
	return found.Tree()
}
