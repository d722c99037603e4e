// Package record stores small files of a session in its workspace. The agent can also write to the
// workspace, so it can replace these files with anything.
package record

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/cmd/internal/durable"
)

// maxRecord bounds how much of a record is read, in bytes. It is much larger than any record.
const maxRecord = 1 << 20

// ErrNoFile says that the path is not a regular file.
var ErrNoFile = errors.New("not a regular file")

// Read reads a record. It does not block on a named pipe and does not follow links.
func Read(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, ErrNoFile
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, ErrNoFile)
	}
	return io.ReadAll(io.LimitReader(file, maxRecord))
}

// Write writes a file atomically and durably.
func Write(path string, content io.Reader, mode os.FileMode) error {
	if err := write(path, content, mode, (*os.File).Sync); err != nil {
		return err
	}
	return durable.SyncDirectory(filepath.Dir(path))
}

// Remove removes a file durably.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return durable.SyncDirectory(filepath.Dir(path))
}

// WriteUnsynced writes a file atomically, but does not wait for the disk. After a crash of the
// node, the file may be missing, empty or incomplete.
func WriteUnsynced(path string, content io.Reader, mode os.FileMode) error {
	return write(path, content, mode, func(*os.File) error { return nil })
}

func write(path string, content io.Reader, mode os.FileMode, sync func(*os.File) error) error {
	// Always create a new file. The agent may have created a directory or a named pipe with this
	// name, and opening a pipe would block.
	_ = os.RemoveAll(path + ".new")
	aside, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(aside, content)
	err = errors.Join(err, aside.Chmod(mode), sync(aside), aside.Close())
	if err == nil {
		err = os.Rename(aside.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(aside.Name()))
	}
	return nil
}
