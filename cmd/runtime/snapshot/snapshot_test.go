package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/archive/httpapi"
	"github.com/parley-dev/parley/cmd/runtime/handover"
	"github.com/parley-dev/parley/hack/test/archivetest"
)

type always struct{}

func (always) OwnerOf(context.Context, string) (string, error) { return "somebody", nil }

func (always) NameOf(context.Context, string) (string, error) { return "default/c", nil }

func (always) CheckAttempt(context.Context, string, int) error { return nil }

type testArchive struct {
	t        *testing.T
	dir, url string
	signing  ed25519.PrivateKey
	before   atomic.Pointer[func(*http.Request)]
}

func newArchive(t *testing.T) *testArchive {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	address := archivetest.InDirectory(t)
	a := &testArchive{t: t, dir: archivetest.Dir(address), signing: private}
	handler := httpapi.NewHandler(archivetest.Open(t, address).Store, always{}, func() ([]ed25519.PublicKey, error) {
		return []ed25519.PublicKey{public}, nil
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before := a.before.Load(); before != nil {
			(*before)(r)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

func (a *testArchive) client(uid string, attempt int) *handover.Archive {
	a.t.Helper()
	token, err := archivetest.Signer(a.signing, session.AudienceArchive)(uid)
	if err != nil {
		a.t.Fatal(err)
	}
	return handover.New(a.url, "", uid, token, attempt, slog.New(slog.DiscardHandler))
}

func keyOf(t *testing.T, uid string) *Key {
	t.Helper()
	raw, err := session.SnapshotKey([]byte("secret"), uid)
	if err != nil {
		t.Fatal(err)
	}
	key, err := NewKey(base64.StdEncoding.EncodeToString(raw), uid)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newSource(t *testing.T) Source {
	t.Helper()
	root := filepath.Join(t.TempDir(), "workspace")
	source := Source{Workspace: root, Home: filepath.Join(root, ".parley", "home")}
	if err := os.MkdirAll(source.Home, 0o755); err != nil {
		t.Fatal(err)
	}
	return source
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func sh(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=T",
		"GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, output)
	}
	return strings.TrimSpace(string(output))
}

func (a *testArchive) keeper(uid string, attempt int, source Source) *Keeper {
	a.t.Helper()
	return NewKeeper(a.client(uid, attempt), keyOf(a.t, uid), source, filepath.Join(a.t.TempDir(), "last"))
}

func (a *testArchive) restore(uid string, into Source) (*Archived, *Applied, error) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 20*time.Second)
	defer cancel()
	client := a.client(uid, 2)
	found, err := client.Snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	downloaded, err := Download(ctx, client, keyOf(a.t, uid), found, filepath.Join(a.t.TempDir(), "download"))
	if err != nil {
		return nil, nil, err
	}
	fetch := func(context.Context, []string, string) error { return nil }
	applied, err := downloaded.Apply(ctx, Target{into, fetch})
	return downloaded, applied, err
}

func take(t *testing.T, k *Keeper, event int) {
	t.Helper()
	if err := k.Take(t.Context(), Contents{Event: event}); err != nil {
		t.Fatal(err)
	}
}

func TestAWorkspaceWithoutARepositoryIsSavedWhole(t *testing.T) {
	t.Parallel()
	a, from, to := newArchive(t), newSource(t), newSource(t)
	sh(t, from.Workspace, `mkdir -p d/empty closed; echo text > d/f; chmod 640 d/f; ln -s d/f link; echo x > closed/x
		chmod 500 closed; mkfifo pipe; ln -s /etc/hostname outside; git init -q own; cd own; echo own > own
		git add own; git commit -q -m own; echo memory > ../.parley/home/.memory; mkdir -p ../.parley/home/.cache
		echo cached > ../.parley/home/.cache/x; echo record > ../.parley/record`)
	take(t, a.keeper("u", 1, from), 7)
	found, _, err := a.restore("u", to)
	if err != nil || found.Event != 7 || found.Attempt != 1 {
		t.Fatalf("the snapshot is %+v, %v", found, err)
	}
	got := sh(t, to.Workspace, `cat d/f closed/x .parley/home/.memory; stat -c %a d/f closed; readlink link outside
		git -C own log --format=%s; git -C own status --porcelain; find . -name pipe -o -name .cache -o -name record
		ls -d d/empty`)
	if want := "text\nx\nmemory\n640\n500\nd/f\n/etc/hostname\nown\nd/empty"; got != want {
		t.Errorf("restored are\n%s\nwant\n%s", got, want)
	}
}

func TestAnUnchangedWorkspaceIsNotUploadedAgain(t *testing.T) {
	t.Parallel()
	a, from := newArchive(t), newSource(t)
	write(t, from.Workspace, "f", "1")
	k := a.keeper("u", 1, from)
	take(t, k, 1)
	chunks := atomic.Int32{}
	count := func(r *http.Request) {
		if r.Method == http.MethodPost && strings.Contains(r.URL.Path, session.ArchiveSnapshot+"/") {
			chunks.Add(1)
		}
	}
	a.before.Store(&count)
	take(t, k, 1)
	take(t, k, 2)
	if chunks.Load() != 0 {
		t.Errorf("%d chunks were uploaded", chunks.Load())
	}
	if found, _, err := a.restore("u", newSource(t)); err != nil || found.Event != 2 {
		t.Errorf("the snapshot is %+v, %v", found, err)
	}
	write(t, from.Workspace, "f", "2")
	take(t, k, 3)
	if chunks.Load() != 1 {
		t.Errorf("%d chunks were uploaded", chunks.Load())
	}
}

// noise returns content that does not compress.
func noise(t *testing.T, size int) string {
	t.Helper()
	text := make([]byte, size)
	_, _ = rand.Read(text)
	return string(text)
}

func TestAnInterruptedUploadKeepsThePreviousSnapshot(t *testing.T) {
	t.Parallel()
	a, from, to := newArchive(t), newSource(t), newSource(t)
	write(t, from.Workspace, "f", "first")
	k := a.keeper("u", 1, from)
	take(t, k, 1)
	write(t, from.Workspace, "f", "second")
	write(t, from.Workspace, "large", noise(t, 9<<20))
	ctx, cancel := context.WithCancel(t.Context())
	kill := func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/1") { // the second chunk
			cancel()
		}
	}
	a.before.Store(&kill)
	if err := k.Take(ctx, Contents{Event: 2}); err == nil {
		t.Fatal("the upload was not interrupted")
	}
	a.before.Store(nil)
	found, _, err := a.restore("u", to)
	if err != nil || found.Event != 1 {
		t.Fatalf("the snapshot is %+v, %v", found, err)
	}
	if text, err := os.ReadFile(filepath.Join(to.Workspace, "f")); string(text) != "first" {
		t.Errorf("the file has %q, %v", text, err)
	}
	take(t, k, 3)
	if found, _, err := a.restore("u", newSource(t)); err != nil || found.Event != 3 {
		t.Errorf("the snapshot is %+v, %v", found, err)
	}
}

// The runtime may be killed after the archive has accepted a snapshot, but before the response
// arrives.
func TestASnapshotWithoutAnAcknowledgementIsReplaced(t *testing.T) {
	t.Parallel()
	a, from := newArchive(t), newSource(t)
	write(t, from.Workspace, "f", "first")
	k := a.keeper("u", 1, from)
	ctx, cancel := context.WithCancel(t.Context())
	kill := func(r *http.Request) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, session.ArchiveSnapshot) {
			cancel()
		}
	}
	a.before.Store(&kill)
	if err := k.Take(ctx, Contents{Event: 1}); err == nil {
		t.Fatal("the commit was acknowledged")
	}
	a.before.Store(nil)
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(5 * time.Millisecond) {
		if _, err := a.client("u", 1).Snapshot(t.Context()); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	take(t, NewKeeper(a.client("u", 1), keyOf(t, "u"), from, k.file), 2)
	if found, _, err := a.restore("u", newSource(t)); err != nil || found.Event != 2 {
		t.Errorf("the snapshot is %+v, %v", found, err)
	}
}

func TestAlteredSnapshotsAreRefused(t *testing.T) {
	t.Parallel()
	a, from, others := newArchive(t), newSource(t), newSource(t)
	write(t, from.Workspace, "large", noise(t, 9<<20))
	write(t, others.Workspace, "large", noise(t, 9<<20))
	take(t, a.keeper("u", 1, from), 1)
	take(t, a.keeper("v", 1, others), 1)
	mine, err := a.client("u", 1).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := a.client("v", 1).Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	chunk := func(of session.Snapshot, index int) []byte {
		uid := "u"
		if of.ID == theirs.ID {
			uid = "v"
		}
		text, err := a.client(uid, 1).Chunk(t.Context(), of.ID, index)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, c := range map[string]struct {
		of  func(session.Snapshot) session.Snapshot
		get func(index int) []byte
	}{
		"a changed bit": {nil, func(i int) []byte {
			text := chunk(mine, i)
			text[len(text)/2] ^= 1
			return text
		}},
		"exchanged chunks": {nil, func(i int) []byte { return chunk(mine, []int{1, 0, 2}[i]) }},
		"a repeated chunk": {nil, func(i int) []byte { return chunk(mine, []int{0, 0, 2}[i]) }},
		"a missing end": {func(s session.Snapshot) session.Snapshot { s.Chunks--; return s },
			func(i int) []byte { return chunk(mine, i) }},
		"a chunk of another Conversation": {nil, func(i int) []byte {
			if i == 1 {
				return chunk(theirs, i)
			}
			return chunk(mine, i)
		}},
		"the snapshot of another Conversation": {func(session.Snapshot) session.Snapshot { return theirs },
			func(i int) []byte { return chunk(theirs, i) }},
	} {
		of := mine
		if c.of != nil {
			of = c.of(of)
		}
		err := copyChunks(&bytes.Buffer{}, keyOf(t, "u"), of, func(i int) ([]byte, error) { return c.get(i), nil })
		if !errors.Is(err, ErrAltered) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := keyOf(t, "u").unseal(of); of.ID != mine.ID && !errors.Is(err, ErrAltered) {
			t.Errorf("the seal of %s: %v", name, err)
		}
	}
	if _, err := keyOf(t, "v").unseal(mine); !errors.Is(err, ErrAltered) {
		t.Errorf("another key: %v", err)
	}
	if _, _, err := a.restore("u", newSource(t)); err != nil {
		t.Errorf("the unaltered snapshot: %v", err)
	}
}

func TestTheArchiveStoresSnapshotsEncrypted(t *testing.T) {
	t.Parallel()
	a, from := newArchive(t), newSource(t)
	write(t, from.Workspace, "f", "canary")
	take(t, a.keeper("u", 1, from), 1)
	if got := sh(t, a.dir, `grep -r canary . || true; find . -type f -path '*snapshot*' | wc -l`); got != "2" {
		t.Errorf("the archive has %s", got)
	}
}

func TestThePreviousSnapshotIsKeptIfTheWorkspaceIsTooLarge(t *testing.T) {
	t.Parallel()
	a, from := newArchive(t), newSource(t)
	write(t, from.Workspace, "f", "first")
	k := a.keeper("u", 1, from)
	take(t, k, 1)
	k.maxBytes = 1 << 20
	write(t, from.Workspace, "large", noise(t, 2<<20))
	if err := k.Take(t.Context(), Contents{Event: 2}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("the error is %v", err)
	}
	if found, _, err := a.restore("u", newSource(t)); err != nil || found.Event != 1 {
		t.Errorf("the snapshot is %+v, %v", found, err)
	}
	if err := os.Truncate(filepath.Join(from.Workspace, "large"), 1<<19); err != nil {
		t.Fatal(err)
	}
	take(t, k, 3)
}

func TestAWorkspaceThatIsTooLargeIsNotUploaded(t *testing.T) {
	t.Parallel()
	a, from := newArchive(t), newSource(t)
	k := a.keeper("u", 1, from)
	k.maxBytes = 9 << 20
	write(t, from.Workspace, "large", noise(t, 20<<20))
	for i := range 3 {
		if err := k.Take(t.Context(), Contents{Event: i}); !errors.Is(err, ErrTooLarge) {
			t.Fatalf("the error is %v", err)
		}
	}
	if found, err := filepath.Glob(filepath.Join(a.dir, "u", "snapshot", "*", "*")); err != nil || len(found) > 0 {
		t.Errorf("the archive has the chunks %q, %v", found, err)
	}
}

func TestAnAttemptThatRestoredNothingCannotReplaceASnapshot(t *testing.T) {
	t.Parallel()
	a, from, fresh := newArchive(t), newSource(t), newSource(t)
	write(t, from.Workspace, "f", "first")
	take(t, a.keeper("u", 1, from), 1)
	write(t, fresh.Workspace, "f", "fresh")
	if err := a.keeper("u", 2, fresh).Take(t.Context(), Contents{}); !errors.Is(err, handover.ErrOtherSnapshot) {
		t.Errorf("the error is %v", err)
	}
	if err := a.keeper("u", 1, from).Take(t.Context(), Contents{}); err == nil {
		t.Error("a snapshot was replaced without its ID")
	}
}

func TestALargeHomeDirectoryIsSavedInPart(t *testing.T) {
	t.Parallel()
	a, from, to := newArchive(t), newSource(t), newSource(t)
	write(t, from.Home, ".memory/notes", "remembered")
	sh(t, from.Home, fmt.Sprintf("mkdir -p go/pkg; cd go/pkg; seq %d | xargs touch", maxBesideFiles))
	large := filepath.Join(from.Home, "downloads", "large")
	write(t, from.Home, "downloads/large", "")
	if err := os.Truncate(large, maxBeside+1); err != nil {
		t.Fatal(err)
	}
	take(t, a.keeper("u", 1, from), 1)
	_, applied, err := a.restore("u", to)
	if err != nil || strings.Join(applied.Omitted, ", ") != "~/go (too many files), ~/downloads (64 MiB)" {
		t.Fatalf("restored was %+v, %v", applied, err)
	}
	if got := sh(t, to.Home, "ls; cat .memory/notes"); got != "remembered" {
		t.Errorf("the home directory has %s", got)
	}
}

func TestAHomeDirectoryOutsideTheWorkspaceIsNotSaved(t *testing.T) {
	t.Parallel()
	a, from, elsewhere := newArchive(t), newSource(t), t.TempDir()
	write(t, elsewhere, "secret", "canary")
	if err := errors.Join(os.RemoveAll(from.Home), os.Symlink(elsewhere, from.Home)); err != nil {
		t.Fatal(err)
	}
	take(t, a.keeper("u", 1, from), 1)
	to := newSource(t)
	_, applied, err := a.restore("u", to)
	if err != nil || len(applied.Omitted) != 1 || !strings.HasPrefix(applied.Omitted[0], "~ ") {
		t.Errorf("restored was %+v, %v", applied, err)
	}
	if got := sh(t, to.Workspace, "grep -r canary . || true"); got != "" {
		t.Errorf("restored was %s", got)
	}
}

// The runtime can read files that the agent cannot read, such as the runtime's environment. A link
// must not put such a file into a snapshot.
func TestASnapshotFollowsNoSymlinksAndReadsNoNamedPipes(t *testing.T) {
	t.Parallel()
	from, secret := newSource(t), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, from.Workspace, "f", "canary of the file")
	write(t, from.Workspace, "g", "g")
	found, err := collect(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer found.close()
	// The agent replaces the files between the listing and the copy.
	for _, name := range []string{"f", "g"} {
		if err := os.Remove(filepath.Join(from.Workspace, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, filepath.Join(from.Workspace, "f")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(from.Workspace, "g"), 0o600); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := found.write(t.Context(), &text); !errors.Is(err, errChanged) {
		t.Errorf("the error for a named pipe is %v", err)
	}
	if plain, _ := gunzip(&text); bytes.Contains(plain, []byte("canary")) {
		t.Error("the snapshot has the target of a link")
	}
}

func gunzip(from *bytes.Buffer) (text []byte, err error) {
	reader, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	var plain bytes.Buffer
	_, err = plain.ReadFrom(reader)
	return plain.Bytes(), err
}

type entry struct{ name, text, link string }

func craft(t testing.TB, entries ...entry) *bytes.Buffer {
	t.Helper()
	var text bytes.Buffer
	compressed := gzip.NewWriter(&text)
	w := tar.NewWriter(compressed)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.text))}
		if e.link != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		}
		_, err := w.Write(nil)
		if err = errors.Join(err, w.WriteHeader(header)); err == nil {
			_, err = w.Write([]byte(e.text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return &text
}

func TestASnapshotCannotWriteOutsideTheWorkspace(t *testing.T) {
	t.Parallel()
	begin, last := entry{name: stateName, text: "{}"}, entry{name: endName, text: "{}"}
	for name, entries := range map[string][]entry{
		"a parent directory":    {begin, {name: "workspace/../escaped", text: "x"}, last},
		"a hidden parent":       {begin, {name: "workspace/a/../../escaped", text: "x"}, last},
		"an absolute path":      {begin, {name: "workspace//escaped", text: "x"}, last},
		"through a link":        {begin, {name: "workspace/l", link: ".."}, {name: "workspace/l/escaped", text: "x"}, last},
		"through a far link":    {begin, {name: "workspace/l", link: "/"}, {name: "workspace/l/escaped", text: "x"}, last},
		"from the home":         {begin, {name: "home/../../../escaped", text: "x"}, last},
		"another place":         {begin, {name: "elsewhere/escaped", text: "x"}, last},
		"git without a clone":   {begin, {name: "clone/f", text: "x"}, last},
		"an object of no clone": {begin, {name: "objects/blob/00", text: "x"}, last},
		"no state":              {{name: "workspace/f", text: "x"}, last},
		"no end":                {begin, {name: "workspace/f", text: "x"}},
		"more after the end":    {begin, last, {name: "workspace/f", text: "x"}},
		"two states":            {begin, begin, last},
	} {
		to := newSource(t)
		if _, err := apply(t.Context(), craft(t, entries...), Target{Source: to}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if got := sh(t, filepath.Dir(to.Workspace), "find . -name escaped"); got != "" {
			t.Errorf("%s: wrote %s", name, got)
		}
	}
	to := newSource(t)
	if _, err := apply(t.Context(), craft(t, begin, entry{name: "workspace/l", link: ".."},
		entry{name: "workspace/l", text: "x"}, last), Target{Source: to}); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, to.Workspace, "cat l"); got != "x" { // the link itself is replaced
		t.Errorf("the file has %q", got)
	}
}
