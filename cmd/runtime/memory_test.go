package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// cgroups returns the cgroup directory of a container in which no process was killed.
func cgroups(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "memory.events"), "oom 0\noom_kill 0\n")
	return dir
}

const killsOne = `printf 'oom 1\noom_kill 1\n' > "$PARLEY_CGROUP_DIR/memory.events"; `

func TestTheErrorSaysThatTheAgentWasOOMKilled(t *testing.T) {
	for script, says := range map[string]string{
		killsOne + "kill -9 $$": "was terminated by signal 9 (killed); memory ran out, and the kernel killed a process of " +
			"the session (OOMKilled)",
		killsOne + "exit 137": "exited with status 137; memory ran out, and the kernel killed a process of the session " +
			"(OOMKilled)",
		"kill -9 $$": "was terminated by signal 9 (killed)",
	} {
		p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(script)})
		p.image = []string{"PARLEY_CGROUP_DIR=" + cgroups(t)}
		p.start(t)
		if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonFailed || got.Message != "the agent test "+says {
			t.Errorf("it ended with status %d: %+v", code, got)
		}
	}
	p := newPod(t, session.Document{FirstMessage: "go", Agent: agent(killsOne + "exit 0")})
	p.image = []string{"PARLEY_CGROUP_DIR=" + cgroups(t)}
	p.start(t)
	if _, got := p.wait(t); got.Reason != v1alpha1.ReasonCompleted || strings.Contains(got.Message, "memory") {
		t.Errorf("an agent that survives its child ends as %+v", got)
	}
}

func TestTheTerminationMessageSaysThatTheRuntimeWasOOMKilled(t *testing.T) {
	for name, c := range map[string]struct {
		kills string
		said  bool
	}{
		"killed for lack of memory": {"oom 1\noom_kill 1\n", true},
		"killed by another process": {"oom 0\noom_kill 0\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, session.Document{})
			dir := cgroups(t)
			p.image = []string{"PARLEY_CGROUP_DIR=" + dir}
			p.start(t)
			p.waitReady(t)
			write(t, filepath.Join(dir, "memory.events"), c.kills)
			p.killSession(t)
			text, err := os.ReadFile(p.termination)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if got := session.WhyEnded(string(text)) == session.OOMKilled; got != c.said || p.cmd.ProcessState.ExitCode() != 128+
				int(syscall.SIGKILL) {
				t.Errorf("it says %q", text)
			}
		})
	}
}
