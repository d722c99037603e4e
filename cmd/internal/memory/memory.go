// Package memory bounds how much garbage the programs that hold a cache let pile up.
package memory

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// headroom is how much may be allocated between two collections of garbage.
	headroom = 16 << 20
	// leastPercent bounds how often a very large heap is collected, mostPercent how seldom a very small one.
	leastPercent, mostPercent = 25, 400
)

// gcPercent of a heap in which so many bytes are in use.
func gcPercent(inUse uint64) int {
	return int(min(max(headroom*100/max(inUse, 1), leastPercent), mostPercent))
}

// Bound the garbage of this process.
func Bound() {
	keepHeadroom()
	keepLimit(memoryFile)
}

// keepHeadroom has garbage collected when it is a certain amount, not when it is as much as what is in use, which is what Go does
// by itself. The cache of thousands of sessions then does not take twice its size, although little of it ever changes; and
// while there are few sessions, a burst of new ones is not interrupted all the time. Who sets GOGC decides alone.
func keepHeadroom() {
	if os.Getenv("GOGC") != "" {
		return
	}
	inUse := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := 0
	afterEachCollection(func() {
		metrics.Read(inUse)
		if percent := gcPercent(inUse[0].Value.Uint64()); percent != now {
			now = percent
			debug.SetGCPercent(percent)
		}
	})
}

// afterEachCollection calls a function each time that garbage was collected: nothing refers to the witness, so each time it is
// found to be garbage.
func afterEachCollection(do func()) {
	witness := &struct{ again func() }{func() {
		do()
		afterEachCollection(do)
	}}
	runtime.SetFinalizer(witness, func(w *struct{ again func() }) { w.again() })
}
