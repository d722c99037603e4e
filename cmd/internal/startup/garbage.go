package startup

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// headroom is the number of bytes that can be allocated between two garbage collections.
	headroom = 16 << 20
	// leastPercent is the smallest GOGC: a very large heap must not be collected too often.
	// mostPercent is the largest GOGC: a small heap must not be collected too rarely. Only a heap
	// smaller than the parameter floor of gcPercent may get a larger GOGC.
	leastPercent, mostPercent = 25, 400
)

// gcPercent returns the value of GOGC for a heap with inUse bytes in use. A heap smaller than floor
// can grow to floor before it is collected.
func gcPercent(inUse, floor uint64) int {
	inUse = max(inUse, 1)
	percent := min(max(headroom*100/inUse, leastPercent), mostPercent)
	if inUse < floor {
		percent = max(percent, (floor-inUse)*100/inUse)
	}
	return int(min(percent, math.MaxInt32))
}

// boundGarbage makes Go collect garbage after a fixed number of allocated bytes. By default, Go
// waits until the heap has twice the size of the data in use, so a large cache would take twice its
// size. A heap smaller than floor is not collected early, because collections would take a fifth of
// the CPU time during a burst of new sessions. If $GOGC is set, boundGarbage does nothing.
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

// afterEachCollection calls a function after each garbage collection. It creates an object to which
// nothing refers. The next collection runs the object's finalizer. The finalizer calls the function
// and creates another such object for the collection after that.
func afterEachCollection(do func()) {
	unreferenced := &struct{ again func() }{func() {
		do()
		afterEachCollection(do)
	}}
	runtime.SetFinalizer(unreferenced, func(w *struct{ again func() }) { w.again() })
}
