// Package process runs children in process groups of their own, so that each can be ended with all
// it started.
package process

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// drain is how long output is still read after a child ended: a process that it left behind may
// hold its pipes.
const drain = 2 * time.Second

// Command is a child in a process group of its own.
func Command(dir string, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, drain
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid: true,
		// Should the runtime be killed, nobody else is there to end the child.
		Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

// Child is a process that was started.
type Child struct {
	cmd *exec.Cmd
	// Ended is closed once the process was waited for; Err is how it ended then.
	Ended chan struct{}
	Err   error
}

// Start a command. After is called once it was waited for.
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

// Failure says how the process failed, without what it printed; empty where it ended with status 0.
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
		return fmt.Sprintf("was ended by signal %d (%s)", status.Signal(), status.Signal())
	}
	return fmt.Sprintf("ended with status %d", exit.ExitCode())
}

// Stop asks the child's group to end, and kills what is left of it after the grace period.
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

// Kill ends the child's group at once.
func (c *Child) Kill() { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }
