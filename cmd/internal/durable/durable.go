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

// Lock locks a file against other processes. It waits, because a process that has just ended may
// keep its lock for a moment. After the timeout, it returns the given error.
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

// SyncDirectory makes the names of the files in a directory durable. It returns no error on network
// file systems that cannot sync a directory, because they keep names durable at all times.
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
