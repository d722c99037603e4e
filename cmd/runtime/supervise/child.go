package supervise

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/process"
)

// These termination messages state reasons that the kubelet may not know. The kubelet may notice an
// OOM kill too late. If the kernel kills only the runtime, the container's first process survives,
// and the kubelet sees no kill.
const (
	killedForMemory = `{"reason":"OOMKilled"}`
	endedAsSilent   = `{"reason":"Unresponsive"}`
)

// child is the session's process. It also records whether the session was asked to end.
type child struct {
	pid      int
	patience time.Duration    // how long the child may take to end
	probes   <-chan int       // missed probes in a row; nil after the child was asked to end
	late     <-chan time.Time // fires when the child must be killed; nil while no end is requested
	silent   bool             // the child was asked to end because it missed probes
	killed   bool             // this process killed the child
}

// probed asks the session to end after too many missed probes in a row.
func (c *child) probed(silent int) {
	if silent < maxSilences {
		return
	}
	fmt.Fprintf(os.Stderr, "supervisor: the session did not answer %d probes in a row; asking it to stop\n", silent)
	c.silent = true
	c.end(syscall.SIGTERM)
}

func (c *child) pass(received syscall.Signal) {
	if received == syscall.SIGTERM || received == syscall.SIGINT {
		c.end(received)
		return
	}
	_ = syscall.Kill(c.pid, received)
}

// end sends a signal that asks the session to end. If the session does not exit in time, the
// supervisor kills it, even if it answers probes again. The supervisor cannot leave this to the
// kubelet: if the signal came from within the pod, the kubelet does not kill the session.
func (c *child) end(by syscall.Signal) {
	_ = syscall.Kill(c.pid, by)
	if c.late == nil {
		c.probes, c.late = nil, time.After(c.patience)
	}
}

func (c *child) kill() {
	fmt.Fprintln(os.Stderr, "supervisor: the session did not stop when asked; killing it")
	c.killed = true
	_ = syscall.Kill(c.pid, syscall.SIGKILL)
}

func (c *child) writeReason(file string, status syscall.WaitStatus, memory process.Memory) error {
	reason := c.reason(status, memory)
	if reason == "" {
		return nil
	}
	if err := os.WriteFile(file, []byte(reason), 0o644); err != nil {
		return fmt.Errorf("write the termination message: %w", err)
	}
	return nil
}

// reason returns a termination message, or an empty string if the supervisor does not know the
// reason.
func (c *child) reason(status syscall.WaitStatus, memory process.Memory) string {
	switch killedByOthers := status.Signal() == syscall.SIGKILL && !c.killed; {
	case exitCode(status) == 0: // the session wrote its own termination message, even if it was asked to end
	case killedByOthers && memory.RanOut():
		return killedForMemory
	case killedByOthers:
		// Return no reason: the kernel or another process killed the session, and the supervisor does not
		// know why. Missed probes (c.silent) do not tell the reason, because a lack of memory can cause
		// them, too.
	case c.silent:
		return endedAsSilent
	}
	return ""
}
