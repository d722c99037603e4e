package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// counters are the files, relative to the container's cgroup directory, in which the kernel counts
// OOM kills: cgroup version 2 and 1.
var counters = []string{"memory.events", "memory/memory.oom_control"}

// Memory remembers the number of OOM kills when it was created.
type Memory struct {
	cgroups string
	before  int
}

// WatchMemory starts to watch the container with this cgroup directory.
func WatchMemory(cgroups string) Memory { return Memory{cgroups, killsIn(cgroups)} }

// RanOut reports whether the kernel has killed a process of the container for lack of memory since
// WatchMemory was called. It returns false if the kernel does not count OOM kills. The kernel
// increases the count before it kills, so the count is up to date once the process has been reaped.
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
