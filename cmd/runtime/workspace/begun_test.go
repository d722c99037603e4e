package workspace_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

func TestWorkIsBegunOnce(t *testing.T) {
	dir := t.TempDir()
	if workspace.Begun(dir) {
		t.Error("it was begun before")
	}
	var begun atomic.Int32
	var attempts sync.WaitGroup
	for range 20 {
		attempts.Go(func() {
			switch err := workspace.Begin(dir); {
			case err == nil:
				begun.Add(1)
			case !errors.Is(err, workspace.ErrBegun):
				t.Error(err)
			}
		})
	}
	attempts.Wait()
	if n := begun.Load(); n != 1 {
		t.Errorf("it was begun %d times", n)
	}
	if !workspace.Begun(dir) {
		t.Error("it does not count as begun")
	}
	if err := workspace.Withdraw(dir); err != nil {
		t.Error(err)
	}
	if err := workspace.Begin(dir); err != nil {
		t.Errorf("after it was withdrawn: %v", err)
	}
}

func TestWhatIsInTheWayOfTheRecordIsNotAccepted(t *testing.T) {
	for name, obstruct := range map[string]func(path, elsewhere string) error{
		"a file":            func(path, _ string) error { return os.WriteFile(path, nil, 0o600) },
		"a link":            func(path, elsewhere string) error { return os.Symlink(elsewhere, path) },
		"a link to nothing": func(path, _ string) error { return os.Symlink("nothing", path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, elsewhere := t.TempDir(), t.TempDir()
			if err := obstruct(filepath.Join(dir, ".parley"), elsewhere); err != nil {
				t.Fatal(err)
			}
			if err := workspace.Begin(dir); err == nil || errors.Is(err, workspace.ErrBegun) || !strings.Contains(err.Error(), "it is no directory") {
				t.Errorf("got %v", err)
			}
			if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) > 0 {
				t.Errorf("written elsewhere: %v, %v", entries, err)
			}
		})
	}
}

func TestALinkInPlaceOfTheRecordIsNotFollowed(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "begun")
	if err := os.Mkdir(filepath.Join(dir, ".parley"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(dir, ".parley", "begun")); err != nil {
		t.Fatal(err)
	}
	if err := workspace.Begin(dir); !workspace.Begun(dir) || !errors.Is(err, workspace.ErrBegun) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("the link was followed")
	}
}

func TestWorkIsNotBegunOnAWorkspaceThatIsFull(t *testing.T) {
	dir := t.TempDir()
	// Room for three inodes: the directory's own, that of the records and their .gitignore.
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=16k,nr_inodes=3"); err != nil {
		t.Skipf("no small file system can be made here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	if err := workspace.Begin(dir); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	if workspace.Begun(dir) {
		t.Error("it counts as begun")
	}
}

func TestTheRecordsAreNoPartOfARepository(t *testing.T) {
	dir := t.TempDir()
	if err := workspace.Begin(dir); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "git", "init", "-q")
	if status := run(t, dir, "git", "status", "--porcelain", "--untracked-files=all"); status != "" {
		t.Errorf("git sees:\n%s", status)
	}
}
