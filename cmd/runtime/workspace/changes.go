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
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// ErrNoRepository says that a directory is not a git repository.
var ErrNoRepository = errors.New("not a git repository")

// maxCompared is the size in bytes of the largest file whose content is compared or shown.
const maxCompared = 1 << 20

// Kind is the kind of a change, in the notation of OpenHands clients.
type Kind string

// The kinds of changes.
const (
	Modified  Kind = "M"
	Added     Kind = "A"
	Deleted   Kind = "D"
	Untracked Kind = "U"
)

// Change is a file that has changed since the session's first commit.
type Change struct {
	Kind Kind   `json:"status"`
	Path string `json:"path"`
}

// Changes holds the changes in a repository. It is computed with go-git, because the agent may have
// configured the git program to run other programs.
type Changes struct {
	// Branch and Commit are checked out.
	Branch, Commit string
	// Files are the files that differ from the commit at which the session started, including
	// uncommitted files. They are sorted by path.
	Files []Change

	root *os.Root
	base *object.Tree // nil if there is no commit to compare with
	done func()
}

// Compare compares a repository with the session's first commit. The caller must close the result.
// When ctx ends, Compare returns, but reads of a large repository or of a named pipe may
// continue. done() is called exactly once: when the result is closed, when the comparison has
// failed, or, if ctx ended first, when the reads have ended.
func Compare(ctx context.Context, dir, base string, done func()) (*Changes, error) {
	return Detach(ctx, func() (*Changes, error) {
		changes, err := compare(ctx, dir, base)
		if err != nil {
			done()
			return nil, err
		}
		changes.done = done
		return changes, nil
	}, func(late *Changes) { _ = late.Close() })
}

// Detach calls do(), which may block, and returns its result. If ctx is done first, Detach returns
// the error of ctx, and passes a later result to drop().
func Detach[T any](ctx context.Context, do func() (T, error), drop func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		value, err := do()
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			if r := <-results; r.err == nil {
				drop(r.value)
			}
		}()
		return *new(T), ctx.Err()
	}
}

func compare(ctx context.Context, dir, base string) (*Changes, error) {
	repository, err := git.PlainOpen(dir)
	if err != nil {
		return nil, ErrNoRepository
	}
	storage, onDisk := repository.Storer.(*filesystem.Storage)
	if _, err := repository.Worktree(); err != nil || !onDisk {
		return nil, ErrNoRepository // a bare repository has no files
	}
	if repository, err = OpenAnyNames(storage, dir); err != nil {
		return nil, err
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

// Close releases the repository.
func (c *Changes) Close() error {
	defer c.done()
	return c.root.Close()
}

func (c *Changes) find(ctx context.Context, repository *git.Repository) error {
	touched := map[string]bool{} // maps a path to whether the file is untracked
	if err := c.committed(ctx, repository, touched); err != nil {
		return err
	}
	tree, err := repository.Worktree()
	if err != nil {
		return err
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

// kind returns the kind of a file's change, or an empty string if the file is unchanged.
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
	file, _ := c.base.File(path.Clean(name)) // nil if there is none
	return file
}

// Errors for files that cannot be shown.
var (
	ErrNoFile   = errors.New("not a file")
	ErrBinary   = errors.New("the file is binary")
	ErrTooLarge = errors.New("the file is too large")
)

// Contents returns a file's content before the session and now. The content is empty if the file
// does not exist.
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

// current returns the present content of a file. For a link, this is the link's target, as in git.
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

// ReadText reads a text file. It follows links within the root.
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
	case len(text) > maxCompared: // the file has grown, and a truncated text may end within a secret
		return "", ErrTooLarge
	case IsBinary(string(text)):
		return "", ErrBinary
	}
	return string(text), nil
}

// IsBinary reports whether a text is binary. Like git, it looks for a zero byte near the beginning.
func IsBinary(text string) bool { return strings.Contains(text[:min(len(text), 8000)], "\x00") }

func treeOf(repository *git.Repository, commit string) (*object.Tree, error) {
	found, err := repository.CommitObject(plumbing.NewHash(commit))
	if err != nil {
		return nil, err
	}
	return found.Tree()
}
