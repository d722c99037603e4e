package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// recordsDir holds what the session keeps on the workspace for its later attempts.
	recordsDir = ".parley"
	begunFile  = "begun"
	endedFile  = "ended"
)

// ErrBegun is why work is not begun: an earlier attempt may have begun it.
var ErrBegun = errors.New("the session was interrupted: an earlier attempt took up the message, and no message is taken up twice. " +
	"The work may be done in part, or may not have been done. To have it done, start a new conversation")

// Begin records on the workspace that work begins. It returns only once the record would survive a crash of the node;
// ErrBegun where there is one already.
func Begin(dir string) error {
	err := withRecords(dir, func(records *os.File) error {
		if err := ignoreRecords(records); err != nil {
			return err
		}
		// Whoever makes the file begins the work: of two attempts, only one can.
		file, err := openAt(records, begunFile, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
		if errors.Is(err, fs.ErrExist) {
			return ErrBegun
		}
		if err != nil {
			return err
		}
		err = errors.Join(file.Sync(), file.Close())
		if err == nil {
			err = errors.Join(syncDirectory(records), syncPath(dir))
		}
		if err != nil {
			return errors.Join(err, remove(records))
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrBegun) {
		return fmt.Errorf("the work is not begun, since that cannot be recorded in %s of the workspace: %w", recordsDir, err)
	}
	return err
}

// Withdraw the record of Begin: what was to do the work could not be started.
func Withdraw(dir string) error {
	return withRecords(dir, func(records *os.File) error {
		return errors.Join(remove(records), syncDirectory(records))
	})
}

// End records that the work that was begun is over, however it went. Who starts the session again finds its files.
func End(dir string) error {
	return withRecords(dir, func(records *os.File) error {
		file, err := openAt(records, endedFile, unix.O_CREAT|unix.O_WRONLY)
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), file.Close(), syncDirectory(records))
	})
}

// Begun says whether work was begun before. What is wrong with the records comes to light when work begins.
func Begun(dir string) bool { return recorded(dir, begunFile) }

// Ended says whether that work is over.
func Ended(dir string) bool { return Begun(dir) && recorded(dir, endedFile) }

func recorded(dir, file string) bool {
	records := filepath.Join(dir, recordsDir)
	info, err := os.Lstat(records)
	if err != nil || !info.IsDir() {
		return false
	}
	_, err = os.Lstat(filepath.Join(records, file))
	return err == nil
}

// withRecords opens the directory of the records, and makes it where it is missing. What else has its name, a file or a
// link to somewhere else, is neither followed nor replaced.
func withRecords(dir string, use func(records *os.File) error) error {
	path := filepath.Join(dir, recordsDir)
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	records, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return errors.New("it is no directory, and not of this session's making")
	}
	if err != nil {
		return err
	}
	defer records.Close()
	return use(records)
}

// ignoreRecords keeps the records out of the repository that the agent may make of the workspace.
func ignoreRecords(records *os.File) error {
	file, err := openAt(records, ".gitignore", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString("*\n")
	return errors.Join(err, file.Close())
}

// openAt opens a file in a directory that is open, wherever that is now.
func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func remove(records *os.File) error {
	return unix.Unlinkat(int(records.Fd()), begunFile, 0)
}

func syncPath(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return syncDirectory(dir)
}

// syncDirectory makes the names in a directory durable. Some file systems over a network refuse that, since they do it anyway.
func syncDirectory(dir *os.File) error {
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}
