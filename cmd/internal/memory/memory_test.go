package memory

import (
	"runtime"
	"testing"
	"time"
)

func TestGarbageMayTakeTheSameRoomWhateverIsInUse(t *testing.T) {
	const mib = 1 << 20
	for inUse, want := range map[uint64]int{0: 400, 2 * mib: 400, 8 * mib: 200, 16 * mib: 100, 32 * mib: 50, 64 * mib: 25, 1000 * mib: 25} {
		if got := gcPercent(inUse); got != want {
			t.Errorf("with %d MiB in use garbage may be %d%% of it, want %d%%", inUse/mib, got, want)
		}
	}
}

func TestEachCollectionOfGarbageIsNoticed(t *testing.T) {
	noticed := make(chan struct{}, 100)
	afterEachCollection(func() { noticed <- struct{}{} })
	for range 3 {
		runtime.GC()
		select {
		case <-noticed:
		case <-time.After(time.Minute):
			t.Fatal("garbage was collected, and nobody noticed")
		}
	}
}
