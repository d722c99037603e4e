package startup

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// headroom is the number of bytes that may be allocated between two collections.
	headroom = 16 << 20
	// leastPercent limits how often a very large heap is collected. mostPercent limits how rarely a
	// very small heap is collected.
	leastPercent, mostPercent = 25, 400
)

// gcPercent returns GOGC for a heap with this many bytes in use. A heap below floor may grow to
// floor first.
func gcPercent(inUse, floor uint64) int {
	inUse = max(inUse, 1)
	percent := min(max(headroom*100/inUse, leastPercent), mostPercent)
	if inUse < floor {
		percent = max(percent, (floor-inUse)*100/inUse)
	}
	return int(min(percent, math.MaxInt32))
}

// boundGarbage starts a collection after a fixed amount of garbage, not at twice the heap in use as
// Go does by default. The cache of thousands of sessions then does not take twice its size,
// although it rarely changes. A heap below floor is not collected early, since a burst of new
// sessions would spend a fifth of its time on collections. GOGC overrides boundGarbage; the
// manifests set GOMEMLIMIT.
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

// afterEachCollection calls a function after each garbage collection, as the finalizer of an object
// to which nothing refers.
func afterEachCollection(do func()) {
	unreferenced := &struct{ again func() }{func() {
		do()
		afterEachCollection(do)
	}}
	runtime.SetFinalizer(unreferenced, func(w *struct{ again func() }) { w.again() })
}
