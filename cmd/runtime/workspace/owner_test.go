package workspace_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

func openOwner(t *testing.T, dir, key string) *workspace.Owner {
	t.Helper()
	owner, err := workspace.OpenOwner(dir, []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return owner
}

func TestAWorkspaceCanBeUsedByOneSessionOnly(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // the container may restart before it has a session
		if !openOwner(t, dir, "key").Free() {
			t.Fatal("a new workspace is not free")
		}
	}
	owner := openOwner(t, dir, "key")
	for range 2 {
		if err := owner.Take("u1/1"); err != nil || owner.Free() {
			t.Fatalf("the first session is refused: %v", err)
		}
	}
	if err := owner.Take("u2/1"); !errors.Is(err, workspace.ErrOwned) {
		t.Errorf("another session gets %v", err)
	}
	again := openOwner(t, dir, "key")
	if err := again.Take("u2/1"); again.Free() || !errors.Is(err, workspace.ErrOwned) {
		t.Errorf("after a restart, another session gets %v", err)
	}
	if err := again.Take("u1/1"); err != nil {
		t.Errorf("after a restart, the same session gets %v", err)
	}
}

// After a crash of the node, a workspace may have files although its owner is not recorded.
func TestAWorkspaceWithFilesButNoOwnerIsRefused(t *testing.T) {
	for _, file := range []string{"work", ".parley/events.jsonl", ".parley/home/.gitconfig"} {
		dir := t.TempDir()
		openOwner(t, dir, "key")
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		owner := openOwner(t, dir, "key")
		if err := owner.Take("u1/1"); owner.Free() || !errors.Is(err, workspace.ErrOwned) {
			t.Errorf("with %s, a session gets %v", file, err)
		}
	}
}

func TestAnAgentCannotPassItsWorkspaceToAnotherSession(t *testing.T) {
	for name, change := range map[string]func(dir, record string) error{
		"no record":     func(_, record string) error { return os.Remove(record) },
		"empty record":  func(_, record string) error { return os.WriteFile(record, nil, 0o600) },
		"another name":  func(_, record string) error { return os.WriteFile(record, []byte("u2/1\n"), 0o600) },
		"a directory":   func(_, record string) error { return errors.Join(os.Remove(record), os.Mkdir(record, 0o700)) },
		"no records":    func(dir, _ string) error { return os.RemoveAll(filepath.Join(dir, ".parley")) },
		"another key's": func(dir, record string) error { return forge(dir, record) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := openOwner(t, dir, "key").Take("u1/1"); err != nil {
				t.Fatal(err)
			}
			work := filepath.Join(dir, "work")
			if err := os.WriteFile(work, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := change(dir, filepath.Join(dir, ".parley", "owner")); err != nil {
				t.Fatal(err)
			}
			owner := openOwner(t, dir, "key")
			for _, session := range []string{"u1/1", "u2/1", ""} {
				if err := owner.Take(session); owner.Free() || !errors.Is(err, workspace.ErrOwned) {
					t.Errorf("the session %q gets %v", session, err)
				}
			}
		})
	}
}

// forge copies the record of another workspace, which is signed with another key.
func forge(dir, record string) error {
	other, err := os.MkdirTemp(dir, "other")
	if err != nil {
		return err
	}
	owner, err := workspace.OpenOwner(other, []byte("another key"))
	if err != nil {
		return err
	}
	text, unread := []byte(nil), owner.Take("u2/1")
	if unread == nil {
		text, unread = os.ReadFile(filepath.Join(other, ".parley", "owner"))
	}
	return errors.Join(unread, os.WriteFile(record, text, 0o600))
}
