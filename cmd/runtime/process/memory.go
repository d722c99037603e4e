package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// counters are the files in which the kernel counts OOM kills, for cgroup versions 2 and 1. Their
// paths are relative to the container's cgroup directory.
var counters = []string{"memory.events", "memory/memory.oom_control"}

// Memory holds the number of OOM kills that a container had when WatchMemory was called.
type Memory struct {
	cgroups string
	before  int
}

// WatchMemory begins to watch the container that has this cgroup directory.
func WatchMemory(cgroups string) Memory { return Memory{cgroups, killsIn(cgroups)} }

// RanOut reports whether there was an OOM kill in the container since WatchMemory was called. It
// returns false if the kernel does not count OOM kills. The kernel counts a kill before the killed
// process exits, so the kill of a reaped process is always counted.
func (m Memory) RanOut() bool { return killsIn(m.cgroups) > m.before }

func killsIn(cgroups string) (kills int) {
	for _, counter := range counters {
		text, err := os.ReadFile(filepath.Join(cgroups, counter))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
				kills, _ = strconv.Atoi(strings.TrimSpace(n))
				return kills
			}
		}
	}
	return 0
}
