package snapshot

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

// gitServer serves the repositories in root over HTTP. The repository "site" has the branch main.
func gitServer(t *testing.T) (root, url string) {
	t.Helper()
	root = t.TempDir()
	sh(t, root, `git init -q -b main work; cd work; mkdir d; for i in 1 2 3; do echo $i > d/$i; git add .
		git commit -q -m base$i; done; cd ..; git clone -q --bare work site; git -C site config http.receivepack true
		git -C site symbolic-ref HEAD refs/heads/main`)
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(sh(t, root, "git --exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=somebody", "HOME=" + root},
	})
	t.Cleanup(server.Close)
	return root, server.URL + "/site"
}

func prepare(t *testing.T, url string) (Source, workspace.Options) {
	t.Helper()
	source := newSource(t)
	options := workspace.Options{Dir: source.Workspace, Home: source.Home,
		Repository: &session.Repository{Name: url, Branch: "main"}, Log: slog.New(slog.DiscardHandler), Patience: time.Minute}
	work, err := workspace.Prepare(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	source.Clone, source.Base = work.Dir, work.Commit
	return source, options
}

func (a *testArchive) restoreClone(url string) (Source, *Applied, error) {
	a.t.Helper()
	to, options := prepare(a.t, url)
	client := a.client("u", 2)
	found, err := client.Snapshot(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	downloaded, err := Download(a.t.Context(), client, keyOf(a.t, "u"), found, filepath.Join(a.t.TempDir(), "download"))
	if err != nil {
		a.t.Fatal(err)
	}
	fetch := func(ctx context.Context, needed []string, wanted string) error {
		return workspace.FetchCommits(ctx, options, to.Clone, needed, wanted)
	}
	applied, err := downloaded.Apply(a.t.Context(), Target{to, fetch})
	return to, applied, err
}

const observed = `git status --porcelain; git for-each-ref refs/heads refs/stash; git rev-parse -q --verify HEAD || true
	git symbolic-ref -q HEAD || true; git stash list | wc -l; readlink own d/etc || true
	(cat d/* own con/* 2>/dev/null || true)
	git fsck --no-dangling 2>/dev/null`

const pushed = "git checkout -q -b topic; echo 4 > d/4; git add .; git commit -q -m own; git push -q origin topic"

// Somebody may push to the branch while the session is stopped.
func TestACloneIsRestoredEvenIfItsBranchHasNewCommits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ server, work, meanwhile string }{
		"commits": {"git config uploadpack.allowReachableSHA1InWant true",
			"echo 4 > d/4; git add .; git commit -q -m own; echo 5 > d/5; rm d/1", ""},
		"no commits": {"git config uploadpack.allowReachableSHA1InWant true", "echo changed > d/1", ""},
		"a host that serves branches only": {"",
			"git checkout -q -b topic; echo 4 > d/4; git add .; git commit -q -m own; echo 5 > d/5", ""},
		"a detached HEAD": {"", "git checkout -q --detach; echo 4 > d/4; git add .; git commit -q -m own", ""},
		"a stash":         {"", "echo 4 > d/1; git stash -q; echo 5 > d/2", ""},
		"a merge": {"", "git checkout -q -b a; echo a > a; git add .; git commit -q -m a; git checkout -q main; " +
			"echo b > b; git add .; git commit -q -m b; git merge -q --no-edit a", ""},
		"a pushed branch":                      {"", pushed, ""},
		"a deleted branch":                     {"", pushed, "git branch -D topic"},
		"a replaced file":                      {"", "rm d/1; mkdir d/1; echo x > d/1/x; rm -r d/2; ln -s 3 d/2", ""},
		"a directory moved behind a link":      {"", "mv d website; ln -s website d", ""},
		"a directory moved down behind a link": {"", "mkdir -p x/y; mv d x/y/d; ln -s x/y/d d", ""},
		"a committed link":                     {"", "mv d website; ln -s website d; git add -A; git commit -q -m moved", ""},
		"an untracked executable":              {"", "echo own > own; chmod 755 own", ""},
		"a branch without a commit":            {"", "git checkout -q --orphan x; git rm -rfq .; echo own > own", ""},
		"a deleted main branch":                {"", "git checkout -q -b topic; git branch -q -D main; echo own > own", ""},
		"an empty worktree":                    {"", "rm -r d", ""},
		"names that Windows reserves": {"", "mkdir con; echo 4 > con/aux.c; git add .; git commit -q -m own; " +
			"echo 5 > con/aux.c; echo own > d/nul", ""},
		"absolute links": {"", "ln -s /etc/hostname own; git add .; git commit -q -m own; ln -s /etc d/etc; readlink own " +
			"d/etc", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			root, url := gitServer(t)
			if c.server != "" {
				sh(t, filepath.Join(root, "site"), c.server)
			}
			from, _ := prepare(t, url)
			sh(t, from.Clone, c.work)
			want := sh(t, from.Clone, observed)
			take(t, a.keeper("u", 1, from), 1)
			sh(t, filepath.Join(root, "work"), `git rm -q d/3; echo foreign > foreign; git add .; git commit -q -m foreign
				git push -q ../site main`)
			if c.meanwhile != "" {
				sh(t, filepath.Join(root, "site"), c.meanwhile)
			}
			to, applied, err := a.restoreClone(url)
			if err != nil {
				t.Fatal(err)
			}
			if got := sh(t, to.Clone, observed); got != want {
				t.Errorf("restored is\n%s\nwant\n%s", got, want)
			}
			if applied.Base != from.Base {
				t.Errorf("the base is %s, want %s", applied.Base, from.Base)
			}
			// The next snapshot omits the history up to the base, so it must contain few objects.
			to.Base = applied.Base
			found, err := collect(t.Context(), to)
			if err != nil {
				t.Fatal(err)
			}
			defer found.close()
			if len(found.clone.objects) > 20 {
				t.Errorf("the next snapshot has %d objects", len(found.clone.objects))
			}
		})
	}
}

func TestARestoreReportsTheCommitThatTheRemoteLost(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	root, url := gitServer(t)
	from, _ := prepare(t, url)
	sh(t, from.Clone, "echo own > own; git add .; git commit -q -m own")
	take(t, a.keeper("u", 1, from), 1)
	sh(t, root, `rm -rf site; git init -q -b main other; cd other; echo other > other; git add .; git commit -q -m other
		cd ..; git clone -q --bare other site`)
	if _, _, err := a.restoreClone(url); err == nil || !strings.Contains(err.Error(), from.Base) {
		t.Errorf("the error is %v", err)
	}
}

// The history that other people pushed must not fill the snapshot.
func TestASnapshotContainsOnlyCommitsThatTheRemoteLacks(t *testing.T) {
	t.Parallel()
	root, url := gitServer(t)
	from, _ := prepare(t, url)
	sh(t, filepath.Join(root, "work"), fmt.Sprintf(`for i in $(seq %d); do git commit -q --allow-empty -m $i; done
		git push -q ../site main`, ownCommits+1))
	sh(t, from.Clone, "git pull -q; echo own > own; git add .; git commit -q -m own")
	found, err := collect(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer found.close()
	if got := len(found.clone.objects); got != 3 {
		t.Errorf("the snapshot has %d objects, want a commit, a tree and a file", got)
	}
}

func TestAllFilesOfAnUnsupportedCloneAreSaved(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	_, url := gitServer(t)
	from, _ := prepare(t, url)
	sh(t, from.Clone, "echo own > own; git config extensions.unknown true; git config core.repositoryformatversion 1")
	take(t, a.keeper("u", 1, from), 1)
	to, _, err := a.restoreClone(url)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(to.Clone, ".git", "config")); !strings.Contains(string(text), "unknown") {
		t.Errorf("the configuration is %s, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(to.Clone, "own")); string(text) != "own\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// An agent may commit a large data file that compresses well.
func TestALargeCommittedFileNeedsLittleMemory(t *testing.T) { // not parallel: it measures all allocations
	a := newArchive(t)
	_, url := gitServer(t)
	from, _ := prepare(t, url)
	sh(t, from.Clone, "truncate -s 96M large; git add large; git commit -q -m large")
	var before, taken, restored runtime.MemStats
	runtime.ReadMemStats(&before)
	take(t, a.keeper("u", 1, from), 1)
	runtime.ReadMemStats(&taken)
	to, _, err := a.restoreClone(url)
	runtime.ReadMemStats(&restored)
	if err != nil {
		t.Fatal(err)
	}
	if took := (taken.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
		t.Errorf("the snapshot took %d MiB", took)
	}
	if took := (restored.TotalAlloc - taken.TotalAlloc) >> 20; took > 64 {
		t.Errorf("the restoration took %d MiB", took)
	}
	got := sh(t, to.Clone, "git status --porcelain; stat -c %s large; git log -1 --format=%s")
	if got != "100663296\nlarge" {
		t.Errorf("restored is %s", got)
	}
}
