package calls_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/parley-dev/parley/controllers/calls"
)

func TestACallIsSkippedWhileACallWithTheSameKeyRuns(t *testing.T) {
	pool, release, count := calls.New(8), make(chan struct{}), atomic.Int32{}
	name := types.NamespacedName{Namespace: "team", Name: "one"}
	for range 3 {
		pool.Go(t.Context(), "same", name, func(context.Context) { count.Add(1); <-release })
	}
	close(release)
	if done := <-pool.Done(); done.Object.GetName() != "one" || done.Object.GetNamespace() != "team" {
		t.Errorf("the event is for %s/%s", done.Object.GetNamespace(), done.Object.GetName())
	}
	if count.Load() != 1 {
		t.Errorf("%d calls ran", count.Load())
	}
	pool.Go(t.Context(), "same", name, func(context.Context) { count.Add(1) })
	<-pool.Done()
	if count.Load() != 2 {
		t.Error("the key is still in use after the call ended")
	}
}

func TestAFullPoolDelaysFurtherCalls(t *testing.T) {
	pool, release := calls.New(1), make(chan struct{})
	started := make(chan string, 2)
	pool.Go(t.Context(), "a", types.NamespacedName{Name: "a"}, func(context.Context) { started <- "a"; <-release })
	<-started
	pool.Go(t.Context(), "b", types.NamespacedName{Name: "b"}, func(context.Context) { started <- "b" })
	select {
	case name := <-started:
		t.Errorf("call %s started in a full pool", name)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if name := <-started; name != "b" {
		t.Errorf("call %s started", name)
	}
}

func TestOnlyCallsInFlightAreRecent(t *testing.T) {
	pool, release := calls.New(1), make(chan struct{})
	if pool.Recent("ns", time.Hour) {
		t.Error("a call is recent before the first call")
	}
	name := types.NamespacedName{Namespace: "ns", Name: "c"}
	pool.Go(t.Context(), "call", name, func(context.Context) { release <- struct{}{}; <-release })
	<-release
	if !pool.Recent("ns", time.Hour) {
		t.Error("a call in flight is not recent")
	}
	if pool.Recent("ns", 0) {
		t.Error("a call that began earlier is recent")
	}
	if pool.Recent("other", time.Hour) {
		t.Error("a call of another namespace is recent")
	}
	close(release)
	if <-pool.Done(); pool.Recent("ns", time.Hour) {
		t.Error("a call that has ended is recent")
	}
}

func TestAPoolIsBusyIfHalfOfItsSlotsAreInUse(t *testing.T) {
	pool, started, release := calls.New(4), make(chan struct{}), make(chan struct{})
	call := func(context.Context) { started <- struct{}{}; <-release }
	pool.Go(t.Context(), "a", types.NamespacedName{Name: "a"}, call)
	if <-started; pool.Busy() {
		t.Error("busy with one of four calls")
	}
	pool.Go(t.Context(), "b", types.NamespacedName{Name: "b"}, call)
	if <-started; !pool.Busy() {
		t.Error("not busy with two of four calls")
	}
	close(release)
}
