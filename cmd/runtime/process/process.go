// Package process runs children in process groups of their own, so that each can be ended with all
// it started.
package process

import (
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

// Stop asks the child's group to end and kills what is left of it after the grace period. ended is
// closed once the child was waited for.
func Stop(cmd *exec.Cmd, ended <-chan struct{}, grace time.Duration) {
	group := -cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
	Kill(cmd)
	<-ended
}

// Kill ends the child's group at once.
func Kill(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
