package process_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/parley-dev/parley/cmd/runtime/process"
)

func TestOOMKillsAreDetected(t *testing.T) {
	const v1, v2 = "memory/memory.oom_control", "memory.events"
	for name, c := range map[string]struct {
		file, before, after string
		ranOut              bool
	}{
		"a kill in cgroup version 1": {v1, "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
			"oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", true},
		"a kill in cgroup version 2": {v2, "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n",
			"low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n", true},
		"a kill before the start":       {v2, "oom 3\noom_kill 3\n", "oom 3\noom_kill 3\n", false},
		"memory ran out without a kill": {v2, "oom 0\noom_kill 0\n", "oom 1\noom_kill 0\n", false},
		"an old kernel without a counter": {v1, "oom_kill_disable 0\nunder_oom 0\n", "oom_kill_disable 0\nunder_oom 1\n",
			false},
		"no counter file": {"other", "", "oom_kill 1\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			set := func(text string) {
				file := filepath.Join(dir, c.file)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			set(c.before)
			memory := process.WatchMemory(dir)
			set(c.after)
			if got := memory.RanOut(); got != c.ranOut {
				t.Errorf("it ran out: %v", got)
			}
		})
	}
}
