package memory

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryFile is where a container's limit is; there is none outside of one.
const memoryFile = "/sys/fs/cgroup/memory.max"

// keepLimit has garbage collected before a container is over its limit. Who sets GOMEMLIMIT decides
// alone.
func keepLimit(file string) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(file))
	}
}

// memoryLimit leaves a tenth to what is not the heap.
func memoryLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return math.MaxInt64
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || limit <= 0 { // "max" where there is none
		return math.MaxInt64
	}
	return limit - limit/10
}
