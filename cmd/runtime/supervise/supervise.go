// Package supervise implements the first process of a session's container, which opens the
// session's port as early as possible. The package stays small and does not import the Kubernetes
// types, because they take milliseconds to load.
package supervise

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/cmd/runtime/process"
)

const (
	// ListenerFD is the file descriptor of the session's listener.
	ListenerFD = 3
	// lastReap is how long remaining processes may take to exit after the session's end.
	lastReap = 5 * time.Second
)

// Guard protects this process, which has the session's secrets. Other processes of the same user,
// such as the agent, cannot read its memory, environment or files. Guard must be called before any
// other process of the session starts.
func Guard() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("protect this process from other processes: %w", err)
	}
	return nil
}

// Run starts the session as a child process, forwards signals to it, and reaps orphans. The session
// cannot reap orphans itself, because it would also reap its own commands, for which it waits.
func Run(program string, args ...string) (code int, err error) {
	if err := Guard(); err != nil {
		return 1, err
	}
	config := ReadConfig()
	// Open the listener first. The kubelet probes the session milliseconds after the start, and a
	// refused connection costs a second. The kernel queues connections until the session accepts
	// them.
	listener, err := listen(config.BindAddress)
	if err != nil {
		return 1, err
	}
	// Outside of a container, this process is not process 1. It must then register with the kernel
	// as the parent of orphans.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("become the parent of orphaned processes: %w", err)
	}
	// Because of Pdeathsig, the child dies with the thread that created it. LockOSThread keeps this
	// thread alive as long as the process.
	runtime.LockOSThread()
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2)
	memory := process.WatchMemory(config.Cgroups)
	pid, err := syscall.ForkExec(program, append([]string{program}, args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2, listener.Fd()}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 1, fmt.Errorf("start the session: %w", err)
	}
	// Close the listener in this process, so that only the session has it. The port then closes
	// when the session ends.
	if err := listener.Close(); err != nil {
		return 1, err
	}
	// From now on, this process mostly waits, and needs few pages of its code. If ReleaseProgram
	// fails, the process still works, but uses more memory.
	_ = process.ReleaseProgram()
	session := &child{pid: pid, patience: config.EndTimeout, probes: probe(config)}
	for {
		select {
		case silent := <-session.probes:
			session.probed(silent)
		case <-session.late:
			session.kill()
		case received := <-signals:
			if received != syscall.SIGCHLD {
				session.pass(received.(syscall.Signal))
				continue
			}
			if status, ended := reap(pid); ended {
				killOrphans()
				return exitCode(status), session.writeReason(config.TerminationLog, status, memory)
			}
		}
	}
}

func listen(address string) (*os.File, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	return file, listener.Close()
}

// Listener returns the listener that the supervisor opened.
func Listener() (net.Listener, error) {
	file := os.NewFile(ListenerFD, "listener")
	defer file.Close() // the listener uses a copy of the descriptor, which no child inherits
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	return listener, nil
}

// reap reaps all processes that have exited. ended is true if the child is one of them.
func reap(child int) (status syscall.WaitStatus, ended bool) {
	for {
		var of syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &of, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil || pid <= 0:
			return status, ended
		case pid == child:
			status, ended = of, true
		}
	}
}

// killOrphans kills all remaining processes. The children of a killed process become children of
// this process and are killed next.
func killOrphans() {
	for deadline := time.Now().Add(lastReap); time.Now().Before(deadline); {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.ECHILD {
			return
		}
		if pid > 0 {
			continue
		}
		for _, orphan := range children() {
			_ = syscall.Kill(orphan, syscall.SIGKILL)
		}
		// The kernel takes a moment to end the processes. It sends no signal when an orphan becomes
		// a child of this process, so poll.
		time.Sleep(time.Millisecond)
	}
}

func children() []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	var pids []int
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// The format is "pid (name) state ppid …", and the name may contain any character.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(os.Getpid()) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// exitCode returns the child's exit code. If a signal ended the child, it returns the code that a
// shell reports.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
