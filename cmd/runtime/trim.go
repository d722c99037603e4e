package main

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/process"
)

const (
	// restDelay is how long the session must be inactive before its memory is trimmed.
	restDelay = 2 * time.Second
	// leastGarbage is the number of allocated bytes that is worth a garbage collection.
	leastGarbage = 1 << 20
)

// trimmer returns unused memory to the kernel while the session waits for its user. Otherwise, Go
// would keep the memory of the start and of the largest turn, for minutes or for ever.
type trimmer struct {
	mu      sync.Mutex
	trimmed uint64 // bytes that were allocated before the last trim
}

var memory trimmer

// trim collects garbage and releases free memory, unless little was allocated since the last call.
func (t *trimmer) trim() {
	t.mu.Lock()
	defer t.mu.Unlock()
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(allocated)
	if allocated[0].Value.Uint64()-t.trimmed < leastGarbage {
		return
	}
	t.trimmed = allocated[0].Value.Uint64()
	debug.FreeOSMemory()
	_ = process.ReleaseProgram() // if this fails, the process only uses more memory
}
