// Package record keeps small files of a session's on its workspace. The agent can write there too,
// and have anything stand in their places.
package record

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// most is far more than a record has.
const most = 1 << 20

// ErrNoFile says that something else is there.
var ErrNoFile = errors.New("it is no file")

// Read a record. It does not wait for a pipe, and follows no link.
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
	return io.ReadAll(io.LimitReader(file, most))
}

// Write a file whole, or not at all. It outlives a crash of the node.
func Write(path string, content io.Reader, mode os.FileMode) error {
	// Always a new one: what is there may be a pipe, which would be waited for, or a directory.
	_ = os.RemoveAll(path + ".new")
	aside, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(aside, content)
	err = errors.Join(err, aside.Chmod(mode), aside.Sync(), aside.Close())
	if err == nil {
		err = os.Rename(aside.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(aside.Name()))
	}
	return SyncDirectory(filepath.Dir(path))
}

// SyncDirectory makes the names in a directory durable. Some file systems over a network refuse
// that, since they do it anyway.
func SyncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}
