package snapshot

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

const (
	// maxContent bounds the total size, in bytes, of a snapshot's files and objects before
	// compression. maxFiles bounds the number of files.
	maxContent = 1 << 30
	maxFiles   = 100000
	// maxBeside bounds the total size, in bytes, of each of two places: the agent's home directory,
	// and the files next to the clone. maxBesideFiles bounds the number of files in each top-level
	// entry of these places.
	maxBeside      = 64 << 20
	maxBesideFiles = 20000
)

// Source is the workspace of a session.
type Source struct {
	// Workspace is the whole workspace. Clone is the clone in the workspace, or empty if the
	// session has no repository. Home is the agent's home directory.
	Workspace, Clone, Home string
	// Base is the session's first commit.
	Base string
}

// place is a directory that a snapshot saves. Its value is the prefix of its files' names in the
// snapshot.
type place string

const (
	inClone     place = "clone/"
	inWorkspace place = "workspace/"
	inHome      place = "home/"
)

// state is the first part of a snapshot.
type state struct {
	// Repository is nil if the snapshot contains all files of the workspace, including the clone's
	// files.
	Repository *repositoryState `json:"repository,omitempty"`
}

type file struct {
	place place
	name  string
	info  fs.FileInfo
}

// content lists the session's work that a snapshot saves.
type content struct {
	state
	roots   map[place]*os.Root
	clone   *clone // nil if there is no clone or go-git cannot read it
	files   []file
	omitted []string
	size    int64 // total size of all files and objects, before compression
}

func (c *content) close() {
	for _, root := range c.roots {
		_ = root.Close()
	}
}

// collect lists the session's work. When ctx is done, it returns immediately, and a read of a large
// repository or of a named pipe may continue in the background.
func collect(ctx context.Context, from Source) (*content, error) {
	return workspace.Detach(ctx, func() (*content, error) {
		c := &content{}
		err := c.collect(ctx, from)
		if err != nil {
			c.close()
		}
		return c, err
	}, (*content).close)
}

func (c *content) collect(ctx context.Context, from Source) error {
	var err error
	if c.roots, err = openRoots(from); err != nil {
		return err
	}
	if err := c.collectClone(ctx, from); err != nil {
		return err
	}
	skip := map[string]bool{workspace.RecordsDir: true}
	if c.clone != nil {
		if name, err := filepath.Rel(from.Workspace, from.Clone); err == nil {
			skip[filepath.ToSlash(name)] = true
		}
	}
	// If there is a clone, large directories next to it are omitted, such as a virtual environment.
	if err := c.collectPlace(ctx, inWorkspace, skip, c.clone != nil, ""); err != nil {
		return err
	}
	if c.roots[inHome] == nil {
		c.omitted = append(c.omitted, "~ (not a directory in the workspace)")
		return c.checkSize()
	}
	// A snapshot needs neither ~/.parley, which the runtime writes again, nor caches, which can be
	// filled again.
	skip = map[string]bool{".parley": true, ".cache": true}
	if err := c.collectPlace(ctx, inHome, skip, true, "~/"); err != nil {
		return err
	}
	return c.checkSize()
}

// openRoots opens the workspace, and in it the clone and the home directory. The result lacks a
// directory that the agent removed or replaced with a link out of the workspace. Such a link is not
// followed, because the runtime can read files that the agent cannot read.
func openRoots(of Source) (map[place]*os.Root, error) {
	whole, err := os.OpenRoot(of.Workspace)
	if err != nil {
		return nil, fmt.Errorf("open the workspace: %w", err)
	}
	roots := map[place]*os.Root{inWorkspace: whole}
	for at, dir := range map[place]string{inClone: of.Clone, inHome: of.Home} {
		name, err := filepath.Rel(of.Workspace, dir)
		if dir == "" || err != nil {
			continue
		}
		if root, err := whole.OpenRoot(name); err == nil {
			roots[at] = root
		}
	}
	return roots, nil
}

// collectPlace lists a place's files, except for the top-level entries in skip. If optional is set,
// it omits each top-level entry with more than maxBesideFiles files. Then it omits the largest
// entries until the total size is at most maxBeside. It adds the names of the omitted entries, with
// the prefix, to c.omitted.
func (c *content) collectPlace(ctx context.Context, at place, skip map[string]bool, optional bool,
	prefix string) error {
	entries, err := fs.ReadDir(c.roots[at].FS(), ".")
	if err != nil {
		return fmt.Errorf("read the workspace: %w", err)
	}
	trees, total, limit := []tree{}, int64(0), maxFiles
	if optional {
		limit = maxBesideFiles
	}
	for _, entry := range entries {
		if skip[entry.Name()] {
			continue
		}
		found, err := c.walk(ctx, at, entry, limit)
		switch {
		case optional && errors.Is(err, ErrTooLarge):
			c.omitted = append(c.omitted, prefix+entry.Name()+" (too many files)")
		case err != nil:
			return err
		default:
			trees = append(trees, *found)
			total += found.size
		}
	}
	slices.SortStableFunc(trees, func(a, b tree) int { return cmp.Compare(a.size, b.size) })
	for ; optional && total > maxBeside; trees = trees[:len(trees)-1] {
		largest := trees[len(trees)-1]
		c.omitted = append(c.omitted, fmt.Sprintf("%s%s (%d MiB)", prefix, largest.name, largest.size>>20))
		total -= largest.size
	}
	for _, kept := range trees {
		c.files = append(c.files, kept.files...)
	}
	return nil
}

func (c *content) collectClone(ctx context.Context, from Source) error {
	if c.roots[inClone] == nil {
		return nil
	}
	found, err := openClone(ctx, from.Clone, from.Base, c.roots[inClone])
	switch {
	case errors.Is(err, errUnsupported):
		return nil // all files of the clone are saved
	case err != nil:
		return err
	}
	c.clone, c.Repository = found, &found.state
	for _, name := range found.changed {
		if info, err := c.roots[inClone].Lstat(name); err == nil && isSaved(info) {
			c.files = append(c.files, file{inClone, name, info})
		}
	}
	return nil
}

// isSaved reports whether a snapshot can contain this kind of file.
func isSaved(info fs.FileInfo) bool {
	return info.Mode().IsRegular() || info.IsDir() || info.Mode()&fs.ModeSymlink != 0
}

// tree is a top-level entry of a place with all its files.
type tree struct {
	name  string
	files []file
	size  int64
}

// walk lists the files of a top-level entry. It follows no links. It returns ErrTooLarge if there
// are more than limit files.
func (c *content) walk(ctx context.Context, at place, top fs.DirEntry, limit int) (*tree, error) {
	found := &tree{name: top.Name()}
	visit := func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil: // the agent removed it, or it is not readable
			return c.omit(file{name: name})
		case len(found.files) == limit:
			return ErrTooLarge
		}
		if info, err := entry.Info(); err == nil && isSaved(info) {
			f := file{at, name, info}
			found.files, found.size = append(found.files, f), found.size+f.size()
		}
		return ctx.Err()
	}
	if !top.IsDir() { // WalkDir would follow a link
		return found, visit(top.Name(), top, nil)
	}
	return found, fs.WalkDir(c.roots[at].FS(), top.Name(), visit)
}

func (f file) size() int64 {
	if !f.info.Mode().IsRegular() {
		return 0
	}
	return f.info.Size()
}

func (c *content) checkSize() error {
	objects := 0
	if c.clone != nil {
		var err error
		if c.size, err = c.clone.objectSize(); err != nil {
			return err
		}
		objects = len(c.clone.objects)
	}
	for _, f := range c.files {
		c.size += f.size()
	}
	if c.size > maxContent || len(c.files)+objects > maxFiles {
		return ErrTooLarge
	}
	return nil
}

// fingerprint identifies the content by the state of the clone, and by the names, modes, sizes and
// modification times of the files.
func (c *content) fingerprint() (string, error) {
	hash := sha256.New()
	if err := json.NewEncoder(hash).Encode(c.state); err != nil {
		return "", err
	}
	for _, f := range c.files {
		if f.info.IsDir() { // the time of a directory changes whenever a file is added or removed
			fmt.Fprintf(hash, "%s%q %v\n", f.place, f.name, f.info.Mode())
			continue
		}
		fmt.Fprintf(hash, "%s%q %v %d %d\n", f.place, f.name, f.info.Mode(), f.info.Size(), f.info.ModTime().UnixNano())
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

const (
	gitConfig = ".git/config"
	stashLog  = ".git/logs/refs/stash"
)
