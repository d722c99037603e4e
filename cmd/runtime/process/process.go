// Package process runs children in their own process groups. A child can therefore be stopped
// together with its descendants.
package process

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// drain bounds how long output is read after a child's exit. The child's descendants may keep the
// pipes open.
const drain = 2 * time.Second

// Command returns a command that runs in its own process group.
func Command(dir string, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, drain
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true,
		// If the runtime is killed, it cannot stop the child. The kernel then kills the child.
		Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

// Child is a started process.
type Child struct {
	cmd *exec.Cmd
	// Ended is closed after the process has exited and been reaped. Err is then the result of the
	// process.
	Ended chan struct{}
	Err   error
}

// Start starts a command. It calls after() when the process has exited and been reaped.
func Start(cmd *exec.Cmd, after func(*Child)) (*Child, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &Child{cmd: cmd, Ended: make(chan struct{})}
	go func() {
		defer close(c.Ended)
		c.Err = cmd.Wait()
		after(c)
	}()
	return c, nil
}

// Failure waits until the process has ended, and describes how the process failed. It returns an
// empty string for status 0.
func (c *Child) Failure() string {
	<-c.Ended
	exit, exited := errors.AsType[*exec.ExitError](c.Err)
	switch {
	case c.Err == nil, errors.Is(c.Err, exec.ErrWaitDelay):
		return ""
	case !exited:
		return c.Err.Error()
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return fmt.Sprintf("was terminated by signal %d (%s)", status.Signal(), status.Signal())
	}
	return fmt.Sprintf("exited with status %d", exit.ExitCode())
}

// Stop sends SIGTERM to the child's process group, and SIGKILL after the grace period.
func (c *Child) Stop(grace time.Duration) {
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.Ended:
	case <-timer.C:
	}
	c.Kill()
	<-c.Ended
}

// Kill kills the child's process group.
func (c *Child) Kill() { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }
