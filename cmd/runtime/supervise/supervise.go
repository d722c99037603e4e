// Package supervise does what the first process of a session's container has to. It holds the
// session's port from the first moment, and is small for that: of the kinds and their libraries,
// which take a process milliseconds to load, it knows nothing.
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
	// ListenerFD is the file that the session finds its listener under.
	ListenerFD = 3
	// lastReap is how long processes that are left over at the end may take to go.
	lastReap = 5 * time.Second
)

// Guard keeps every other process of the same user, such as the agent, out of this one, which holds
// the session's secrets: from its memory and environment as from its files. Nothing else of the
// session's runs before that.
func Guard() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("keep others out of this process: %w", err)
	}
	return nil
}

// Run starts the session, passes signals on to it, and waits for every process that lost its
// parent. The session is a child, since a process that waits for all children would take the exit
// status of those that it started itself from under them.
func Run(program string, args ...string) (code int, err error) {
	if err := Guard(); err != nil {
		return 1, err
	}
	place := ReadPlace()
	// First of all: the kubelet asks whether the session is ready milliseconds after this process
	// is there, and a connection that is refused costs it another second. Until the session
	// answers, the kernel keeps who asks waiting.
	listener, err := listen(place.BindAddress)
	if err != nil {
		return 1, err
	}
	// Outside of a container it is not the first process; then it asks to be the parent of orphans.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("become the parent of orphans: %w", err)
	}
	// The child dies with the thread that made it: this one, which lasts as long as the process.
	runtime.LockOSThread()
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2)
	memory := process.WatchMemory(place.Cgroups)
	pid, err := syscall.ForkExec(program, append([]string{program}, args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2, listener.Fd()}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 1, fmt.Errorf("start the session: %w", err)
	}
	// Only the session holds it now, so that it ends with the session.
	if err := listener.Close(); err != nil {
		return 1, err
	}
	session := &child{pid: pid, patience: place.EndTimeout, asked: ask(place)}
	for {
		select {
		case silent := <-session.asked:
			session.heard(silent)
		case <-session.late:
			session.kill()
		case received := <-signals:
			if received != syscall.SIGCHLD {
				session.pass(received.(syscall.Signal))
				continue
			}
			if status, ended := reap(pid); ended {
				killOrphans()
				return exitCode(status), session.sayWhy(place.TerminationLog, status, memory)
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

// Listener is what the first process listens with.
func Listener() (net.Listener, error) {
	file := os.NewFile(ListenerFD, "listener")
	defer file.Close() // the listener has a copy, which no child inherits
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	return listener, nil
}

// reap waits for all processes that have ended, and says whether the child is one of them.
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

// killOrphans ends what the session left behind. Those that lose their parent by it become children
// in their turn.
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
		// The kernel takes a moment to end them, and tells nobody when an orphan becomes a child.
		time.Sleep(time.Millisecond)
	}
}

// children of this process, as /proc lists them.
func children() []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var pids []int
	for _, file := range stats {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// "pid (name) state ppid …", and the name may hold anything.
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

// exitCode is that of the child; for a signal as a shell has it.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
