package startup

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// headroom is how much may be allocated between two collections of garbage.
	headroom = 16 << 20
	// leastPercent bounds how often a very large heap is collected, mostPercent how seldom a very
	// small one.
	leastPercent, mostPercent = 25, 400
)

// gcPercent of a heap in which so many bytes are in use. One that is smaller than floor may grow to
// that size first.
func gcPercent(inUse, floor uint64) int {
	inUse = max(inUse, 1)
	percent := min(max(headroom*100/inUse, leastPercent), mostPercent)
	if inUse < floor {
		percent = max(percent, (floor-inUse)*100/inUse)
	}
	return int(min(percent, math.MaxInt32))
}

// boundGarbage has garbage collected when it reaches a fixed amount, not when it equals the heap in use as
// Go's default has it. The cache of thousands of sessions then does not take twice its size, although
// little of it ever changes. A heap below floor is never collected early: a burst of new sessions
// would spend a fifth of its time on that. GOGC overrides it; GOMEMLIMIT is set by the manifests.
func boundGarbage(floor uint64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	inUse := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := 0
	afterEachCollection(func() {
		metrics.Read(inUse)
		if percent := gcPercent(inUse[0].Value.Uint64(), floor); percent != now {
			now = percent
			debug.SetGCPercent(percent)
		}
	})
}

// afterEachCollection calls a function each time that garbage was collected: nothing refers to the
// witness, so each time it is found to be garbage.
func afterEachCollection(do func()) {
	witness := &struct{ again func() }{func() {
		do()
		afterEachCollection(do)
	}}
	runtime.SetFinalizer(witness, func(w *struct{ again func() }) { w.again() })
}
