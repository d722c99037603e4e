package controllers

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// heldReader answers a read with the version that there was when it came, once it is let go.
type heldReader struct {
	client.Reader
	version atomic.Int32
	began   chan struct{}
	letGo   chan struct{}
}

func (h *heldReader) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	version := h.version.Load()
	h.began <- struct{}{}
	<-h.letGo
	o.SetResourceVersion(strconv.Itoa(int(version)))
	return nil
}

func TestSettingsAreReadOnceForAllWhoAskAndNeverBeforeTheyAsked(t *testing.T) {
	live := &heldReader{began: make(chan struct{}), letGo: make(chan struct{})}
	fresh, name := &freshSettings{}, client.ObjectKey{Namespace: "ns", Name: "ada"}
	ask := func() <-chan *v1alpha1.UserSettings {
		got := make(chan *v1alpha1.UserSettings, 1)
		go func() {
			settings, err := fresh.get(t.Context(), live, name)
			if err != nil {
				t.Error(err)
			}
			got <- settings
		}()
		return got
	}
	first := ask()
	<-live.began
	live.version.Store(1) // somebody stores others, and starts sessions
	var later []<-chan *v1alpha1.UserSettings
	for range 10 {
		later = append(later, ask())
	}
	await(t, func() error { return asking(fresh, name, 11) })
	live.letGo <- struct{}{}
	if got := <-first; got.ResourceVersion != "0" {
		t.Errorf("the first got version %s", got.ResourceVersion)
	}
	<-live.began
	live.letGo <- struct{}{}
	seen := map[*v1alpha1.UserSettings]bool{}
	for _, got := range later {
		settings := <-got // with one more read; none other is let go
		if settings.ResourceVersion != "1" || seen[settings] {
			t.Errorf("somebody who asked later got version %s, as somebody else did: %t", settings.ResourceVersion,
				seen[settings])
		}
		seen[settings] = true
	}
	await(t, func() error { return asking(fresh, name, 0) })
}

func TestWhoGivesUpWaitingForSettingsHoldsUpNobody(t *testing.T) {
	live := &heldReader{began: make(chan struct{}, 3), letGo: make(chan struct{}, 3)}
	fresh, name := &freshSettings{}, client.ObjectKey{Namespace: "ns", Name: "ada"}
	var asked sync.WaitGroup
	asked.Go(func() { _, _ = fresh.get(t.Context(), live, name) })
	<-live.began
	asked.Go(func() { _, _ = fresh.get(t.Context(), live, name) }) // its read is the next
	await(t, func() error { return asking(fresh, name, 2) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fresh.get(ctx, live, name); err == nil {
		t.Error("there was nothing to be had yet")
	}
	live.letGo <- struct{}{}
	live.letGo <- struct{}{}
	asked.Wait()
}

// asking is an error until so many ask for settings.
func asking(f *freshSettings, name client.ObjectKey, want int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	have := 0
	if reads := f.reads[name]; reads != nil {
		have = reads.asking
	}
	if have != want {
		return fmt.Errorf("%d ask", have)
	}
	return nil
}
