package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/cmd/internal/durable"
)

const (
	// temporary is the suffix of a file while it is being written.
	temporary = ".tmp"
	// temporaryTTL is the age at which a temporary file is deleted. A file of this age was left
	// behind by a killed process.
	temporaryTTL = time.Hour
)

// uidPattern matches the directory of a Conversation, but not other directories on the volume, such
// as lost+found.
var uidPattern = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

type directory struct{ root string }

func openDirectory(root string) (bucket, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the store: %w", err)
	}
	return &directory{root: filepath.Clean(root)}, nil
}

func (d *directory) path(key string) string { return filepath.Join(d.root, filepath.FromSlash(key)) }

func (d *directory) ready(context.Context) error {
	_, err := os.ReadDir(d.root)
	return err
}

func (d *directory) list(ctx context.Context, prefix string, visit func(entry)) error {
	if prefix != "" {
		return d.walk(ctx, d.path(prefix), visit)
	}
	entries, err := os.ReadDir(d.root)
	for _, entry := range entries {
		known := uidPattern.MatchString(entry.Name()) || entry.Name() == ledgerDir
		if err == nil && entry.IsDir() && known {
			err = d.walk(ctx, d.path(entry.Name()), visit)
		}
	}
	return err
}

// walk visits the files below a directory. It skips a file that disappears during the walk. A
// directory that cannot be read is an error, and does not count as empty.
func (d *directory) walk(ctx context.Context, dir string, visit func(entry)) error {
	return filepath.WalkDir(dir, func(path string, found fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || found.IsDir() {
			return errors.Join(err, ctx.Err())
		}
		info, err := found.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", path)
		case !strings.HasSuffix(path, temporary):
			key := filepath.ToSlash(strings.TrimPrefix(path, d.root+string(filepath.Separator)))
			visit(entry{key: key, size: info.Size(), version: versionOf(info)})
		case time.Since(info.ModTime()) > temporaryTTL:
			_ = os.Remove(path)
		}
		return nil
	})
}

func (d *directory) open(_ context.Context, key string, offset int64) (*object, error) {
	file, err := os.Open(d.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotFound
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		_, err = file.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &object{ReadCloser: file, size: info.Size(), version: versionOf(info)}, nil
}

// versionOf returns a string that changes with every write, because each write replaces the file.
func versionOf(info fs.FileInfo) string {
	stat, _ := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d-%d-%d", stat.Ino, info.ModTime().UnixNano(), info.Size())
}

// put writes a temporary file, syncs it and renames it. A crash leaves the old object or the new
// object.
func (d *directory) put(_ context.Context, key, _ string, content []byte, when condition) error {
	path := d.path(key)
	dir := filepath.Dir(path)
	if err := d.makeDir(dir); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, filepath.Base(path)+".*"+temporary)
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // no effect after the rename
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return d.replace(file.Name(), path, when)
}

// replace renames a written file to the path of an object if the condition holds. A lock on the
// directory makes the check and the rename atomic, also between processes.
func (d *directory) replace(written, path string, when condition) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() // also releases the lock
	if when != (condition{}) {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOLCK) { // a file system without locks
			return fmt.Errorf("lock a directory of the store: %w", err)
		}
		info, err := os.Stat(path)
		switch exists := err == nil; {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case exists == when.absent, exists && versionOf(info) != when.version:
			return errChanged
		}
	}
	if err := os.Rename(written, path); err != nil {
		return err
	}
	return dir.Sync()
}

// makeDir creates a directory below the root and syncs its parents.
func (d *directory) makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil || dir == d.root {
		return err
	}
	parent := filepath.Dir(dir)
	if err := d.makeDir(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return durable.SyncDirectory(parent)
}

// remove removes an object, and its directory if that is then empty.
func (d *directory) remove(_ context.Context, key string) error {
	path := d.path(key)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(path))
	return nil
}

func (d *directory) removeAll(_ context.Context, uid string) error { return os.RemoveAll(d.path(uid)) }
