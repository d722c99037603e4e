package supervise

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/process"
)

// Termination messages. What runs the container may not know: it lost no container, and may hear of
// a kill too late or never.
const (
	killedForMemory = `{"reason":"OOMKilled"}`
	endedAsSilent   = `{"reason":"Unresponsive"}`
)

// child is the session, and what was done to end it.
type child struct {
	pid      int
	patience time.Duration    // with one that was told to end
	asked    <-chan int       // how often in a row it was silent; nil once it was told to end
	late     <-chan time.Time // when it is killed; nil until it was told to end
	silent   bool             // why it was told to end
	killed   bool             // by this process
}

// heard how often in a row the session was silent.
func (c *child) heard(silent int) {
	if silent < silentTold {
		return
	}
	fmt.Fprintf(os.Stderr, "supervisor: the session does not answer, %d times in a row: it is told to end\n", silent)
	c.silent = true
	c.end(syscall.SIGTERM)
}

// pass a signal on.
func (c *child) pass(received syscall.Signal) {
	if received == syscall.SIGTERM || received == syscall.SIGINT {
		c.end(received)
		return
	}
	_ = syscall.Kill(c.pid, received)
}

// end tells the session to end. From then on it is not what it answers that counts, but whether it
// ends: somebody who sent a signal from within the pod would not see to that.
func (c *child) end(by syscall.Signal) {
	_ = syscall.Kill(c.pid, by)
	if c.late == nil {
		c.asked, c.late = nil, time.After(c.patience)
	}
}

func (c *child) kill() {
	fmt.Fprintln(os.Stderr, "supervisor: the session was told to end and does not: it is killed")
	c.killed = true
	_ = syscall.Kill(c.pid, syscall.SIGKILL)
}

// sayWhy it ended, where this process knows.
func (c *child) sayWhy(file string, status syscall.WaitStatus, memory process.Memory) error {
	why := c.why(status, memory)
	if why == "" {
		return nil
	}
	if err := os.WriteFile(file, []byte(why), 0o644); err != nil {
		return fmt.Errorf("say why the session ended: %w", err)
	}
	return nil
}

// why it ended, as a termination message; empty where this process knows no more than others.
func (c *child) why(status syscall.WaitStatus, memory process.Memory) string {
	switch killedByOthers := status.Signal() == syscall.SIGKILL && !c.killed; {
	case exitCode(status) == 0: // it wrote why itself, though it may have been told to end as well
	case killedByOthers && memory.RanOut():
		return killedForMemory
	case killedByOthers: // who did knows why; a session that lacks memory is silent before it is killed
	case c.silent:
		return endedAsSilent
	}
	return ""
}
