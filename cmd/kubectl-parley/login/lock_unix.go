//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package login

import (
	"os"

	"golang.org/x/sys/unix"
)

// tryLock locks a file until the file is closed. It returns false if the file is locked already.
func tryLock(file *os.File) bool {
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
