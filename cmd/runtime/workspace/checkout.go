package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/index"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// indexVersion is the version of the index file. All versions of git can read it.
const indexVersion = 2

// workTree is the work tree of a clone during a checkout.
type workTree struct {
	objects storer.EncodedObjectStorer
	root    *os.Root
	index   index.Index
}

// CheckOut replaces the files and the index of the clone in dir with those of the current commit.
// Without a commit, both are empty. CheckOut is faster than the checkout of go-git, which compares
// the commit with the index and the files, and checks all parent directories of each file. Like git
// on Linux, CheckOut accepts file names that Windows reserves, such as aux.c, and does not change
// the targets of symbolic links.
func CheckOut(ctx context.Context, dir string) error {
	storage := openStorage(dir)
	defer storage.Close()
	repository, err := git.Open(storage, nil)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	w := &workTree{objects: storage, root: root, index: index.Index{Version: indexVersion}}
	if err := w.clear(); err != nil {
		return err
	}
	head, err := repository.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return storage.SetIndex(&w.index)
	}
	if err != nil {
		return err
	}
	commit, err := repository.CommitObject(head.Hash())
	if err != nil {
		return err
	}
	if err := w.writeTree(ctx, "", commit.TreeHash); err != nil {
		return err
	}
	return storage.SetIndex(&w.index)
}

// clear removes all files, except the directory .git.
func (w *workTree) clear() error {
	dir, err := w.root.Open(".")
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, name := range names {
		if name == git.GitDirName {
			continue
		}
		if err := w.root.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
}

// writeTree writes the entries of a directory. Each entry must be new. A directory with two entries
// of the same name is therefore an error, and nothing is written through a symbolic link of the
// commit.
func (w *workTree) writeTree(ctx context.Context, dir string, hash plumbing.Hash) error {
	tree, err := object.GetTree(w.objects, hash)
	if err != nil {
		return fmt.Errorf("check out %q: %w", dir, err)
	}
	for i := range tree.Entries {
		entry := &tree.Entries[i]
		name := path.Join(dir, entry.Name)
		_, err := tree.FindEntry(entry.Name) // it rejects names such as .git and ..
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
		case strings.Contains(entry.Name, "/"):
			err = errors.New("the name of a file contains a slash")
		case len(w.root.Name())+len("/")+len(name) >= syscall.PathMax:
			err = syscall.ENAMETOOLONG // other programs could not open the file
		case entry.Mode == filemode.Dir:
			if err = w.root.Mkdir(name, 0o755); err == nil {
				if err := w.writeTree(ctx, name, entry.Hash); err != nil {
					return err
				}
			}
		default:
			err = w.writeEntry(name, entry)
		}
		if err != nil {
			return fmt.Errorf("check out %q: %w", name, err)
		}
	}
	return nil
}

// writeEntry writes a file, a symbolic link or the directory of a submodule, and adds it to the
// index.
func (w *workTree) writeEntry(name string, entry *object.TreeEntry) (err error) {
	added, info := &index.Entry{Name: name, Hash: entry.Hash, Mode: entry.Mode}, os.FileInfo(nil)
	switch entry.Mode {
	case filemode.Submodule:
		err = w.root.Mkdir(name, 0o755)
	case filemode.Symlink:
		info, err = w.writeLink(name, entry.Hash)
	case filemode.Executable:
		info, err = w.writeFile(name, entry.Hash, 0o755)
	case filemode.Regular:
		info, err = w.writeFile(name, entry.Hash, 0o644)
	default:
		err = fmt.Errorf("the mode %s is unknown", entry.Mode)
	}
	if err != nil {
		return err
	}
	w.index.Entries = append(w.index.Entries, added)
	if info == nil {
		return nil
	}
	added.Size, added.ModifiedAt = uint32(info.Size()), info.ModTime()
	// If these fields are correct, git need not read the file to know that it is unchanged.
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		added.CreatedAt = time.Unix(stat.Ctim.Unix())
		added.Dev, added.Inode, added.UID, added.GID = uint32(stat.Dev), uint32(stat.Ino), stat.Uid, stat.Gid
	}
	return nil
}

func (w *workTree) writeFile(name string, hash plumbing.Hash, mode os.FileMode) (info os.FileInfo, err error) {
	content, err := w.open(hash)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	file, err := w.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := io.Copy(file, content); err != nil {
		return nil, err
	}
	return file.Stat()
}

func (w *workTree) writeLink(name string, hash plumbing.Hash) (os.FileInfo, error) {
	if strings.EqualFold(path.Base(name), ".gitmodules") {
		return nil, errors.New("a symbolic link must not have this name") // git refuses it, too
	}
	content, err := w.open(hash)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	target, err := io.ReadAll(content)
	if err != nil {
		return nil, err
	}
	if err := w.root.Symlink(string(target), name); err != nil {
		return nil, err
	}
	return w.root.Lstat(name)
}

func (w *workTree) open(hash plumbing.Hash) (io.ReadCloser, error) {
	blob, err := object.GetBlob(w.objects, hash)
	if err != nil {
		return nil, err
	}
	return blob.Reader()
}
