package workspace_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
	"github.com/parley-dev/parley/hack/test/gitserver"
)

// newRepository creates an empty repository with a work tree.
func newRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	gitserver.Run(t, dir, "git", "init", "-q", "-b", "main")
	return dir
}

func cloneOf(t *testing.T, repository string) workspace.Options {
	t.Helper()
	return options(t, &session.Repository{Name: "file://" + repository, Branch: "main"})
}

func TestACloneHasTheFilesOfTheCommit(t *testing.T) {
	source := newRepository(t)
	write := func(name, content string, mode os.FileMode) {
		path := filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("run.sh", "#!/bin/sh\n", 0o755)
	write("i2c/aux.c", "int aux;\n", 0o644) // Windows reserves this name
	write("deep/er/con", "text", 0o644)
	write("empty", "", 0o644)
	write("i2c.h", "// git sorts this name before the files of i2c\n", 0o644)
	for name, target := range map[string]string{"link": "i2c/aux.c", "deep/outside": "/etc/passwd"} {
		if err := os.Symlink(target, filepath.Join(source, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(source, "module"), 0o755); err != nil { // otherwise, git add removes it
		t.Fatal(err)
	}
	gitserver.Run(t, source, "git", "update-index", "--add", "--cacheinfo",
		"160000,0123456789012345678901234567890123456789,module")
	gitserver.Commit(t, source, "last", "all files")
	got := prepare(t, cloneOf(t, source))
	// diff-files reports each file whose metadata differs from the index.
	if changed := gitserver.Run(t, got.Dir, "git", "diff-files", "--name-status"); changed != "" {
		t.Errorf("git regards these files as changed: %s", changed)
	}
	if status := gitserver.Run(t, got.Dir, "git", "status", "--porcelain"); status != "" {
		t.Errorf("git status says %s", status)
	}
	want := gitserver.Run(t, source, "git", "ls-files", "--stage")
	if files := gitserver.Run(t, got.Dir, "git", "ls-files", "--stage"); files != want ||
		!strings.Contains(files, "160000") {
		t.Errorf("the index has\n%s\nwant\n%s", files, want)
	}
	info, err := os.Stat(filepath.Join(got.Dir, "run.sh"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("run.sh: %v, %v", info, err)
	}
	if target, err := os.Readlink(filepath.Join(got.Dir, "deep/outside")); target != "/etc/passwd" {
		t.Errorf("the link has the target %q: %v", target, err)
	}
}

// rawTree stores a tree without the checks of git. Each entry consists of "mode name" and a hash in
// hexadecimal.
func rawTree(t *testing.T, repository string, entries ...[2]string) string {
	t.Helper()
	var content bytes.Buffer
	for _, entry := range entries {
		hash, err := hex.DecodeString(entry[1])
		if err != nil {
			t.Fatal(err)
		}
		content.WriteString(entry[0] + "\x00")
		content.Write(hash)
	}
	return store(t, repository, "tree", content.String())
}

func store(t *testing.T, repository, kind, content string) string {
	t.Helper()
	cmd := exec.Command("git", "hash-object", "-w", "-t", kind, "--literally", "--stdin")
	cmd.Dir, cmd.Stdin = repository, strings.NewReader(content)
	hash, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(hash))
}

func TestAMalformedCommitIsNotCheckedOut(t *testing.T) {
	for name, treeOf := range map[string]func(repository, file, toGit string) string{
		".git": func(repository, file, _ string) string {
			return rawTree(t, repository, [2]string{"40000 .git", rawTree(t, repository, [2]string{"100644 config", file})})
		},
		".GIT in a directory": func(repository, file, _ string) string {
			inner := rawTree(t, repository, [2]string{"40000 .GIT", rawTree(t, repository, [2]string{"100644 config", file})})
			return rawTree(t, repository, [2]string{"40000 dir", inner})
		},
		"..": func(repository, file, _ string) string {
			return rawTree(t, repository, [2]string{"40000 ..", rawTree(t, repository, [2]string{"100644 evil", file})})
		},
		"a path": func(repository, file, toGit string) string {
			return rawTree(t, repository, [2]string{"120000 a", toGit}, [2]string{"100644 a/config", file})
		},
		"a link and a directory": func(repository, file, toGit string) string {
			return rawTree(t, repository, [2]string{"120000 a", toGit},
				[2]string{"40000 a", rawTree(t, repository, [2]string{"100644 config", file})})
		},
		"a link and a file": func(repository, file, _ string) string {
			toConfig := store(t, repository, "blob", ".git/config")
			return rawTree(t, repository, [2]string{"120000 a", toConfig}, [2]string{"100644 a", file})
		},
		"a link and a submodule": func(repository, file, toGit string) string {
			return rawTree(t, repository, [2]string{"120000 a", toGit}, [2]string{"160000 a", file})
		},
		"a link as .gitmodules": func(repository, _, toGit string) string {
			return rawTree(t, repository, [2]string{"120000 .gitmodules", toGit})
		},
		"a truncated directory": func(repository, file, _ string) string {
			truncated := store(t, repository, "tree", "100644 file")
			return rawTree(t, repository, [2]string{"40000 dir", truncated}, [2]string{"100644 file", file})
		},
	} {
		t.Run(name, func(t *testing.T) {
			source := newRepository(t)
			file := store(t, source, "blob", "[core]\n\tfsmonitor = evil\n")
			tree := treeOf(source, file, store(t, source, "blob", ".git"))
			commit := store(t, source, "commit", "tree "+tree+
				"\nauthor T <t@example.com> 0 +0000\ncommitter T <t@example.com> 0 +0000\n\nevil\n")
			gitserver.Run(t, source, "git", "update-ref", "refs/heads/main", commit)
			o := cloneOf(t, source)
			if _, err := workspace.Prepare(t.Context(), o); err == nil || !strings.Contains(err.Error(), "check out") {
				t.Errorf("the error is %v", err)
			}
			left, err := os.ReadDir(o.Dir)
			if err != nil || len(left) > 0 {
				t.Errorf("the workspace contains %v, %v", left, err)
			}
		})
	}
}
