// Package cluster runs a Kubernetes control plane as processes on loopback. It makes certificates,
// assigns ports, and supervises the processes so that none is left running.
package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Process is a program that the supervisor runs.
type Process struct {
	Name  string
	Path  string
	Args  []string
	Env   []string      // added to the supervisor's own variables
	Grace time.Duration // the time between SIGTERM and SIGKILL
	Ready Probe         // polled until it succeeds; without a probe, a started process is ready
}

// Supervisor runs processes and stops them in reverse order.
//
// It restarts no process. If a process exits by itself, the supervisor cancels the context that
// Supervise returned, and the caller must stop the other processes. A restart would hide from the
// developer which process failed and why.
type Supervisor struct {
	logDir string
	died   context.CancelCauseFunc

	mu       sync.Mutex
	children []*child
	stopping bool
	broken   bool // a process died
}

type child struct {
	Process
	cmd  *exec.Cmd
	log  string
	gone chan struct{} // closed when the process has been reaped
}

// Supervise returns a supervisor and a context. The context ends when its parent ends or a process
// exits. After the exit of a process, context.Cause returns a *Death.
func Supervise(ctx context.Context, logDir string) (*Supervisor, context.Context) {
	ctx, died := context.WithCancelCause(ctx)
	return &Supervisor{logDir: logDir, died: died}, ctx
}

// Start starts a process and waits until it is ready.
func (s *Supervisor) Start(ctx context.Context, p Process) error {
	c, err := s.launch(p)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	if p.Ready == nil {
		return nil
	}
	if err := p.Ready.wait(ctx); err != nil {
		return fmt.Errorf("%s is not ready: %w; see %s", p.Name, err, c.log)
	}
	return nil
}

func (s *Supervisor) launch(p Process) (*child, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, context.Canceled
	}
	path := filepath.Join(s.logDir, p.Name+".log")
	log, err := RotateLog(path)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own descriptor
	c := &child{Process: p, cmd: exec.Command(p.Path, p.Args...), log: path, gone: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), p.Env...)
	c.cmd.Stdout, c.cmd.Stderr = log, log
	// A process in its own group does not get Ctrl-C from the terminal, so the supervisor can stop
	// the processes in order. If this program is killed, the kernel kills the process.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := StartOnLastingThread(c.cmd); err != nil {
		return nil, err
	}
	s.children = append(s.children, c)
	go s.reap(c)
	return c, nil
}

// reap waits until a child exits, and then kills the other processes of its group.
func (s *Supervisor) reap(c *child) {
	_ = c.cmd.Wait() // ProcessState holds the exit status
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	close(c.gone)

	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping && slices.Contains(s.children, c) {
		s.broken = true
		s.died(&Death{Name: c.Name, Log: c.log, Status: c.cmd.ProcessState.Sys().(syscall.WaitStatus)})
	}
}

// graceAfterDeath limits the grace periods after a process has died. It is short, because an API
// server without etcd does not stop within its own grace period.
const graceAfterDeath = 3 * time.Second

// Stop stops all processes in reverse order. Each process gets a SIGTERM, and a SIGKILL if it still
// runs after its grace period. When the channel force is closed, Stop no longer waits for grace
// periods.
func (s *Supervisor) Stop(force <-chan struct{}) {
	s.mu.Lock()
	s.stopping = true
	children, broken := slices.Clone(s.children), s.broken
	s.mu.Unlock()
	for _, c := range slices.Backward(children) {
		grace := c.Grace
		if broken {
			grace = min(grace, graceAfterDeath)
		}
		c.stop(grace, force)
	}
}

// End stops one process without reporting a death. The process may be started again.
func (s *Supervisor) End(name string) {
	s.mu.Lock()
	i := s.index(name)
	if i < 0 {
		s.mu.Unlock()
		return
	}
	c := s.children[i]
	s.children = slices.Delete(s.children, i, i+1)
	s.mu.Unlock()
	c.stop(c.Grace, nil)
}

// PID returns the process ID of a named process, or 0.
func (s *Supervisor) PID(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.index(name); i >= 0 {
		return s.children[i].cmd.Process.Pid
	}
	return 0
}

func (s *Supervisor) index(name string) int {
	return slices.IndexFunc(s.children, func(c *child) bool { return c.Name == name })
}

func (c *child) stop(grace time.Duration, force <-chan struct{}) {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.gone:
		return
	case <-force:
	case <-time.After(grace):
	}
	_ = c.cmd.Process.Kill()
	<-c.gone
}

// RotateLog opens a new log. The previous log gets the suffix .1.
func RotateLog(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Rename(path, path+".1"); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
}

var starts = sync.OnceValue(func() chan<- func() {
	requests := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range requests {
			start()
		}
	}()
	return requests
})

// StartOnLastingThread starts a command that has a parent-death signal. The kernel sends this
// signal when the thread that started the command ends, and Go ends idle threads. Therefore one
// goroutine, locked to its thread, starts all commands.
func StartOnLastingThread(cmd *exec.Cmd) error {
	result := make(chan error)
	starts() <- func() { result <- cmd.Start() }
	return <-result
}
