package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

func TestAFileOrLinkInPlaceOfTheRecordsDirectoryIsAnError(t *testing.T) {
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
			if _, err := workspace.OpenRecords(dir); err == nil || !strings.Contains(err.Error(), ".parley") {
				t.Errorf("got %v", err)
			}
			if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) > 0 {
				t.Errorf("the target has %v, %v", entries, err)
			}
		})
	}
}

func TestChangesAreComparedWithTheCommitThatWasClonedFirst(t *testing.T) {
	dir := t.TempDir()
	git := func(script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=T",
			"GIT_AUTHOR_EMAIL=t@example.com",
			"GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
		output, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		return strings.TrimSpace(string(output))
	}
	first := git(`git init -q -b main . && echo 1 > a && echo 1 > b && echo .parley/ > .gitignore && mkdir con && ` +
		`echo 1 > con/aux.c && git add . && git commit -qm one && git rev-parse HEAD`)
	records, err := workspace.OpenRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	if base := records.Base(first); base != first {
		t.Errorf("the base is %s", base)
	}
	second := git(`git checkout -qb work && echo 2 > a && git commit -qam two && echo 3 > b && echo new > c && ` +
		`echo 2 > con/aux.c && git rev-parse HEAD`)
	// A later attempt clones another commit, but the base stays the commit of the first attempt.
	base := records.Base(second)
	changes, err := workspace.Compare(t.Context(), dir, base, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	if got, want := fmt.Sprint(changes.Branch, changes.Commit, changes.Files), fmt.Sprint("work", second,
		"[{M a} {M b} {U c} {M con/aux.c}]"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := workspace.Compare(t.Context(), t.TempDir(), base, func() {}); !errors.Is(err, workspace.ErrNoRepository) {
		t.Errorf("without a repository: %v", err)
	}
}

func TestComparingARepositoryTimesOut(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("sh", "-ec", "git init -q -b main . && mkfifo .gitignore")
	cmd.Dir = dir
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := workspace.Compare(ctx, dir, "", func() {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
