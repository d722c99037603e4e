package startup

import (
	"runtime"
	"testing"
	"time"
)

const MiB = 1 << 20

func TestTheGarbagePercentageFallsAsTheHeapGrows(t *testing.T) {
	for inUse, want := range map[uint64]int{0: 400, 2 * MiB: 400, 8 * MiB: 200, 16 * MiB: 100, 32 * MiB: 50, 64 * MiB: 25,
		1000 * MiB: 25} {
		if got := gcPercent(inUse, 0); got != want {
			t.Errorf("with %d MiB in use garbage may be %d%% of it, want %d%%", inUse/MiB, got, want)
		}
	}
}

func TestAHeapIsNotCollectedBeforeItReachesItsMinimumSize(t *testing.T) {
	const floor = 64 * MiB
	for inUse, want := range map[uint64]int{2 * MiB: 3100, 8 * MiB: 700, 32 * MiB: 100, 60 * MiB: 26, 64 * MiB: 25,
		1000 * MiB: 25} {
		if got := gcPercent(inUse, floor); got != want {
			t.Errorf("with %d MiB in use garbage may be %d%% of it, want %d%%", inUse/MiB, got, want)
		}
	}
	if got := gcPercent(0, floor); got <= 0 {
		t.Errorf("with nothing in use garbage may be %d%% of it", got)
	}
}

func TestTheHookRunsAfterEachGarbageCollection(t *testing.T) {
	noticed := make(chan struct{}, 100)
	afterEachCollection(func() { noticed <- struct{}{} })
	for range 3 {
		runtime.GC()
		select {
		case <-noticed:
		case <-time.After(time.Minute):
			t.Fatal("the hook did not run after a collection")
		}
	}
}
