package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// counters are where the kernel counts the processes of a container that it killed because memory
// ran out, below the directory where the container has its cgroups: of version 2, and of version 1.
var counters = []string{"memory.events", "memory/memory.oom_control"}

// Memory knows how often memory had run out when it was made.
type Memory struct {
	cgroups string
	before  int
}

// WatchMemory of the container whose cgroups are at a directory.
func WatchMemory(cgroups string) Memory { return Memory{cgroups, killsIn(cgroups)} }

// RanOut says that the kernel killed a process of the container since, because memory ran out.
// Where the kernel does not tell, nobody knows of any. Who waited for a process knows that it is
// counted: the kernel counts before it kills.
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
