// Command build makes bin/k8s: Kubernetes and etcd from Go modules, as one
// program with a link per component. It builds once and again only when what
// goes into the build has changed. It imports the standard library alone, so
// that it starts at once even where nothing has been compiled yet.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// components are the names under which the program is found in bin/k8s.
var components = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet",
}

const lockInterval = 200 * time.Millisecond

var errInterrupted = errors.New("interrupted")

// The parent-death signal of the go command follows the thread that started it,
// not the process: main keeps its thread, so no build outlives this program.
func init() { runtime.LockOSThread() }

func main() {
	source := flag.String("source", "hack/tools/k8s", "directory of the module to build")
	target := flag.String("target", "bin/k8s", "directory to build into")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, *source, *target); err != nil {
		fmt.Fprintln(os.Stderr, "k8s:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, source, target string) error {
	// The Makefile names our own target where the user named nothing.
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" && !sameDirectory(assets, target) {
		return checkAssets(assets)
	}
	build, err := newBuild(ctx, source, target)
	if err != nil {
		return err
	}
	if build.upToDate() {
		return nil
	}
	unlock, err := lock(ctx, target)
	if err != nil {
		return err
	}
	defer unlock()
	// Whoever held the lock may have built just what is wanted.
	if build.upToDate() {
		return nil
	}
	return build.make(ctx)
}

func sameDirectory(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

// checkAssets looks at the binaries that the user provides in place of ours.
func checkAssets(dir string) error {
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("KUBEBUILDER_ASSETS is set, but %s has no %s; unset it to build one", dir, name)
		}
	}
	return nil
}

// lock makes builds into the same directory take turns. The lock goes with the
// process that holds it, so a killed build blocks nobody.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = file.Close() }
	// Asked for again and again, since a wait in the kernel would not see Ctrl-C.
	tick := time.NewTicker(lockInterval)
	defer tick.Stop()
	for waiting := false; ; waiting = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			unlock()
			return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		if !waiting {
			fmt.Println("k8s: another build is under way, waiting for it")
		}
		select {
		case <-ctx.Done():
			unlock()
			return nil, errInterrupted
		case <-tick.C:
		}
	}
}

// make builds under a temporary name and renames, then links, and stamps last:
// a build that is killed half way leaves what was there and no stamp for it.
func (b *build) make(ctx context.Context) error {
	fmt.Printf("k8s: building Kubernetes %s into %s; the first time takes minutes\n", b.version, b.target)
	show := newProgress(os.Stdout)
	defer show.end()

	stale, err := b.fetch(ctx, show)
	if err != nil {
		return fmt.Errorf("fetching modules failed: %w", err)
	}
	temporary := filepath.Join(b.target, ".k8s.new")
	if err := b.compile(ctx, show, stale, temporary); err != nil {
		return fmt.Errorf("build of %s failed: %w", b.source, err)
	}
	binary := filepath.Join(b.target, "k8s")
	if err := os.Rename(temporary, binary); err != nil {
		return err
	}
	for _, name := range components {
		if err := link("k8s", filepath.Join(b.target, name)); err != nil {
			return err
		}
	}
	if err := b.writeStamp(); err != nil {
		return err
	}
	info, err := os.Stat(binary)
	if err != nil {
		return err
	}
	show.done(fmt.Sprintf("built, %d MB", info.Size()>>20))
	return nil
}

func link(to, path string) error {
	if current, err := os.Readlink(path); err == nil && current == to {
		return nil
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.Symlink(to, path)
}

// fetch downloads what is missing and returns the packages that are not in the
// build cache, which are those that compile will have to work on.
func (b *build) fetch(ctx context.Context, show *progress) (map[string]bool, error) {
	args := append([]string{"list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}, b.flags...)
	show.phase("looking for modules to fetch and packages to compile")
	fetched := 0
	stale := map[string]bool{}
	listed := func(line []byte) {
		if len(line) > 0 {
			stale[string(line)] = true
		}
	}
	var rest bytes.Buffer
	reported := func(line []byte) {
		if !bytes.HasPrefix(line, []byte("go: downloading ")) {
			fmt.Fprintf(&rest, "%s\n", line)
			return
		}
		fetched++
		show.count("fetching modules", fetched, b.modules)
	}
	if err := b.goCommand(ctx, append(args, "."), listed, reported); err != nil {
		return nil, withOutput(ctx, err, rest.Bytes())
	}
	return stale, nil
}

func (b *build) compile(ctx context.Context, show *progress, stale map[string]bool, output string) error {
	// go runs in the source directory, so its output needs a full path.
	output, err := filepath.Abs(output)
	if err != nil {
		return err
	}
	args := append([]string{"build", "-v", "-o", output}, b.flags...)
	total := len(stale)
	if total == 0 {
		show.phase("linking")
	} else {
		show.count("compiling packages", 0, total)
	}
	var rest bytes.Buffer
	reported := func(line []byte) {
		if !stale[string(line)] {
			fmt.Fprintf(&rest, "%s\n", line)
			return
		}
		// -v names each package once; the map makes sure of it.
		delete(stale, string(line))
		if len(stale) == 0 {
			show.phase("linking")
			return
		}
		show.count("compiling packages", total-len(stale), total)
	}
	if err := b.goCommand(ctx, append(args, "."), nil, reported); err != nil {
		_ = os.Remove(output)
		return withOutput(ctx, err, rest.Bytes())
	}
	return nil
}

// withOutput puts what a command wrote below the line that says it failed.
func withOutput(ctx context.Context, err error, output []byte) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(output))
}

// goCommand runs go in the source directory and hands over its output by line.
func (b *build) goCommand(ctx context.Context, args []string, stdout, stderr func(line []byte)) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.source
	cmd.Env = append(os.Environ(), environment...)
	out, err := &lineWriter{line: stdout}, &lineWriter{line: stderr}
	cmd.Stdout, cmd.Stderr = out, err
	// The compilers that go starts are in its group and end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	defer err.flush()
	defer out.flush()
	return cmd.Run()
}
