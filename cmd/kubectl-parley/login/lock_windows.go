package login

import (
	"os"

	"golang.org/x/sys/windows"
)

// tryLock locks a file until the file is closed. It returns false if the file is locked already.
func tryLock(file *os.File) bool {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	return windows.LockFileEx(windows.Handle(file.Fd()), flags, 0, 1, 0, &windows.Overlapped{}) == nil
}
