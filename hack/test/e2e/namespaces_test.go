package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/parley-dev/parley/hack/local/cluster"
)

// runInNamespaces runs this program as the first process of new Linux namespaces. When that process
// ends, the kernel kills all processes in the namespaces and removes their mounts.
func runInNamespaces(ctx context.Context, o options) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// These flags replace flags of the same name in os.Args, because the last value of a flag counts.
	cmd := exec.Command(self, append(os.Args[1:], "--stage="+stageInit, "--state="+o.state)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		// The child has its own process group, so it does not get Ctrl-C from the terminal. If its
		// parent is killed, the kernel kills the child.
		Setpgid: true, Pdeathsig: syscall.SIGKILL,
	}
	if err := cluster.StartOnLastingThread(cmd); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			return errors.New("the run in the namespaces failed; the logs are in " + o.logs)
		}
		return nil
	case <-ctx.Done():
		// No process in these Linux namespaces needs a graceful shutdown.
		_ = cmd.Process.Kill()
		<-ended
		return errors.New("interrupted")
	}
}

// A node writes to these directories. In the namespaces, each of them is a tmpfs.
var tmpfsDirs = []string{"/run", "/var/lib", "/var/log"}

// runInit runs as the first process of the namespaces. It makes all mounts private, starts the
// worker, and reaps orphaned processes.
func runInit() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC,
		""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range tmpfsDirs {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // only SIGKILL ends this process
	// os/exec waits only for its own child, but orphaned processes must also be reaped.
	worker, err := os.StartProcess("/proc/self/exe", append(os.Args, "--stage="+stageInside), &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{nil, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if pid == worker.Pid {
			if status.Signaled() || status.ExitStatus() != 0 {
				os.Exit(1) // the worker printed the reason
			}
			return nil
		}
	}
}
