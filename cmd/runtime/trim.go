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

// trimmer returns the memory of this process to the kernel. Most sessions wait for their user most
// of the time. Without trimmer, Go would keep the memory that the start and the largest turn used,
// for minutes or for ever.
type trimmer struct {
	mu      sync.Mutex
	trimmed uint64 // bytes that were allocated before the last trim
}

// memory is the trimmer of this process.
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
