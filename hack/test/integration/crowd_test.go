//go:build bench

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

const (
	conversations = 50
	watchersEach  = 4
	rounds        = 20
)

// The test measures how long an event takes from the journal to a watcher, and how much memory and
// CPU time the facade uses. One client never reads its stream.
func TestManyClientsStreamEventsThroughOneFacade(t *testing.T) {
	people := make([]*person, conversations)
	var all sync.WaitGroup
	for i := range people {
		people[i] = newPerson(t, nil)
		all.Go(func() { people[i].converse(t, "talk", nil) })
	}
	all.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	idle := facadeUse(t)
	lazy, err := people[0].request(ctx, "GET", "/api/conversations/talk/events/stream", "")
	if err != nil {
		t.Fatal(err)
	}
	if response, err := http.DefaultClient.Do(lazy); err != nil {
		t.Fatal(err)
	} else {
		t.Cleanup(func() { _ = response.Body.Close() })
	}
	var mu sync.Mutex
	var delays []time.Duration
	for _, p := range people {
		for range watchersEach {
			all.Go(func() {
				_ = p.stream(ctx, "talk", -1, func(data json.RawMessage) error {
					var e session.Event
					if json.Unmarshal(data, &e) != nil || !e.IsUserMessage() {
						return nil
					}
					at, err := time.Parse("2006-01-02T15:04:05.000000", e.Timestamp)
					if err == nil {
						mu.Lock()
						delays = append(delays, time.Since(at))
						mu.Unlock()
					}
					return err
				})
			})
		}
	}
	before, began := facadeUse(t), time.Now()
	var writers sync.WaitGroup
	for _, p := range people {
		writers.Go(func() {
			for n := range rounds {
				p.wants(t, 200, "POST", "/api/conversations/talk/message", `{"message": "`+strings.Repeat("x", 500)+strconv.Itoa(n)+
					`"}`)
				<-time.After(500 * time.Millisecond) // as fast as a person writes
			}
		})
	}
	writers.Wait()
	took, after := time.Since(began), facadeUse(t)
	want := conversations * watchersEach * rounds
	for deadline := time.Now().Add(testTimeout); ; <-time.After(50 * time.Millisecond) {
		mu.Lock()
		n := len(delays)
		mu.Unlock()
		if n >= want {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events arrived", n, want)
		}
	}
	cancel()
	all.Wait()
	slices.Sort(delays)
	at := func(p float64) time.Duration {
		return delays[int(p*float64(len(delays)-1))].Round(10 * time.Microsecond)
	}
	fmt.Printf("%d clients watch %d conversations: %d events in %s\n", conversations*watchersEach, conversations,
		len(delays), took.Round(time.Second))
	fmt.Printf("journal to watcher: p50 %s, p90 %s, p99 %s, max %s\n", at(0.5), at(0.9), at(0.99), at(1))
	fmt.Printf("facade: %d MiB without watchers, %d MiB with them, %.1f%% of a core\n", idle.rss>>20, after.rss>>20,
		100*(after.cpu-before.cpu).Seconds()/took.Seconds())
}

type use struct {
	rss int64
	cpu time.Duration
}

func facadeUse(t *testing.T) use {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(suite.facade.PID())
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	ticks := func(i int) int64 { n, _ := strconv.ParseInt(fields[i], 10, 64); return n }
	return use{rss: ticks(21) * int64(os.Getpagesize()), cpu: time.Duration(ticks(11)+ticks(12)) * 10 * time.Millisecond}
}
