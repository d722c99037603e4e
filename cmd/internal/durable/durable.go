// Package durable protects files against crashes and concurrent writers.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Lock locks a file against other processes. It waits for the lock, because a process that has just
// ended may hold it a moment longer. After the timeout it returns the error held.
func Lock(file *os.File, timeout time.Duration, held error) error {
	for deadline := time.Now().Add(timeout); ; <-time.After(20 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil, errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOLCK): // a file system without locks
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", filepath.Base(file.Name()), err)
		case time.Now().After(deadline):
			return held
		}
	}
}

// SyncDirectory makes the names in a directory durable. It ignores file systems that do not support
// this call: they are network file systems, whose names are always durable.
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
